package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// tree is a cgroup of the test's own in every hierarchy of this machine.
type tree struct {
	t      *testing.T
	name   string
	mounts []string
}

func newTree(t *testing.T) *tree {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	tr := &tree{t: t, name: fmt.Sprintf("/microlet-test-%d-%d", os.Getpid(), time.Now().UnixNano())}
	for _, m := range []string{"cpu", "cpuacct", "memory", "blkio", "pids"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", m, "cgroup.procs")); err == nil {
			tr.mounts = append(tr.mounts, filepath.Join("/sys/fs/cgroup", m))
		}
	}
	if len(tr.mounts) == 0 {
		tr.mounts = []string{"/sys/fs/cgroup"}
	}
	t.Cleanup(tr.remove)
	return tr
}

// burner is a process in a cgroup.
type burner struct {
	tree *tree
	name string
	cmd  *exec.Cmd
}

// make makes a cgroup with a process that runs a script.
func (tr *tree) make(name, script string) *burner {
	tr.t.Helper()
	b := &burner{tree: tr, name: name, cmd: exec.Command("/bin/sh", "-c", script)}
	if err := b.cmd.Start(); err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(b.end)
	for _, mount := range tr.mounts {
		dir := filepath.Join(mount, tr.name, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			tr.t.Fatal(err)
		}
		pid := strconv.Itoa(b.cmd.Process.Pid)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
			tr.t.Fatal(err)
		}
	}
	return b
}

// end kills the process and removes its cgroup, as a runtime does.
func (b *burner) end() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill() // it may have ended
	_ = b.cmd.Wait()
	b.cmd = nil
	for _, mount := range b.tree.mounts {
		dir := filepath.Join(mount, b.tree.name, b.name)
		proctest.Await(b.tree.t, patience, "the end of "+dir, func() bool {
			err := os.Remove(dir)
			return err == nil || os.IsNotExist(err)
		})
	}
}

// remove removes what is left, the innermost first.
func (tr *tree) remove() {
	for _, mount := range tr.mounts {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(mount, tr.name), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := os.Remove(dirs[i]); err != nil {
				tr.t.Errorf("a cgroup stays behind: %v", err)
			}
		}
	}
}
