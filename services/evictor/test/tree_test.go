package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// memory is where cgroup v1 has its controller of memory.
const memory = "/sys/fs/cgroup/memory"

// tree is a cgroup of the test's own.
type tree struct {
	t    *testing.T
	name string
}

func newTree(t *testing.T) *tree {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they make cgroups")
	}
	if _, err := os.Stat(filepath.Join(memory, "cgroup.procs")); err != nil {
		t.Skip("this machine has no cgroup v1; with v2 the test's own cgroup would need controllers of its parents")
	}
	tr := &tree{t: t, name: fmt.Sprintf("/microlet-test-%d-%d", os.Getpid(), time.Now().UnixNano())}
	t.Cleanup(func() {
		for _, dir := range []string{"kubepods/besteffort", "kubepods", ""} {
			if err := os.Remove(filepath.Join(memory, tr.name, dir)); err != nil {
				t.Errorf("a cgroup stays behind: %v", err)
			}
		}
	})
	return tr
}

// use makes the cgroup of a pod with a process that runs a script, and waits until it takes as many bytes.
func (tr *tree) use(uid, script string, bytes int) {
	tr.t.Helper()
	dir := filepath.Join(memory, tr.name, "kubepods/besteffort/pod"+uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tr.t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "read -r go; "+script)
	start, err := cmd.StdinPipe()
	if err != nil {
		tr.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		proctest.Await(tr.t, patience, "the end of "+dir, func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		tr.t.Fatal(err)
	}
	if _, err := start.Write([]byte("go\n")); err != nil {
		tr.t.Fatal(err)
	}
	proctest.Await(tr.t, patience, uid+" takes its memory", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "memory.usage_in_bytes"))
		used, parseErr := strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && parseErr == nil && used >= bytes
	})
}
