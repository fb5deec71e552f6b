// Package peertest starts processes as the other end of a unix socket for tests.
//
// A process can have any user and any cgroup. The tests use the real kernel and must run as root.
package peertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// made counts the cgroups, so that their names differ.
var made atomic.Int64

// Cgroup makes a cgroup below the test's own in each hierarchy that is mounted, and removes it when the test ends. It
// returns the folders.
func Cgroup(t testing.TB, path string) []string {
	t.Helper()
	return cgroup(t, path, own(t))
}

// Unit makes a cgroup that has the same path in each hierarchy, as a unit of systemd's has.
func Unit(t testing.TB, path string) []string {
	t.Helper()
	roots := own(t)
	for controllers := range roots {
		roots[controllers] = "/"
	}
	return cgroup(t, path, roots)
}

func cgroup(t testing.TB, path string, below map[string]string) []string {
	t.Helper()
	var folders []string
	top := fmt.Sprintf("microlet-test-%d-%d", os.Getpid(), made.Add(1))
	for controllers, at := range below {
		mount := mountOf(t, controllers)
		if mount == "" {
			continue
		}
		base := filepath.Join(mount, at)
		dir := filepath.Join(base, top)
		chain := []string{}
		for _, part := range append([]string{""}, strings.Split(path, "/")...) {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			chain = append(chain, dir)
			inherit(t, dir)
		}
		t.Cleanup(func() { remove(t, chain) })
		folders = append(folders, dir)
	}
	if len(folders) == 0 {
		t.Fatal("no hierarchy of cgroups is mounted")
	}
	return folders
}

// inherit gives a cpuset of v1, which is empty at first, what the one above it has.
func inherit(t testing.TB, dir string) {
	t.Helper()
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && len(above) > 1 { // v2's are empty where they are not set, and mean those above
			err = os.WriteFile(filepath.Join(dir, name), above, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// remove removes the folders, the last one first; a process that was killed is gone from them a moment later.
func remove(t testing.TB, folders []string) {
	t.Helper()
	for i := len(folders) - 1; i >= 0; i-- {
		var err error
		proctest.Await(t, 10*time.Second, "the removal of "+folders[i], func() bool {
			err = unix.Rmdir(folders[i])
			return !errors.Is(err, unix.EBUSY)
		})
		if err != nil {
			t.Errorf("remove %s: %v", folders[i], err)
		}
	}
}

// own are the test's own cgroups, by their controllers.
func own(t testing.TB) map[string]string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		found[fields[1]] = fields[2]
	}
	return found
}

// mountOf is where the hierarchy with these controllers is mounted; empty if it is not.
func mountOf(t testing.TB, controllers string) string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount, super := strings.Fields(before)[4], strings.Fields(after)
		switch {
		case controllers == "" && super[0] == "cgroup2":
			return mount
		case super[0] == "cgroup" && controllers != "" && strings.Contains(","+super[2]+",", ","+controllers+","):
			return mount
		}
	}
	return ""
}

// Process is a program that runs as a user and in cgroups.
type Process struct {
	PID int

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Options say what a process is.
type Options struct {
	UID int
	// Cgroups are folders of Cgroup. Default: the test's own.
	Cgroups []string
}

// Start starts the program (see proctest.Program) with these arguments, as a user of the node's group. The program has
// to call Ready before it does anything else, and it goes on once it is in its cgroups. It is killed when the test
// ends.
func Start(t testing.TB, o Options, args ...string) *Process {
	t.Helper()
	cmd := proctest.Command(t.Context(), args...)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.UID), Gid: role.GroupNode}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{PID: cmd.Process.Pid, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.Kill)
	for _, dir := range o.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	return p
}

// Ready waits, in the program, until it may begin.
func Ready() { _, _ = bufio.NewReader(os.Stdin).ReadString('\n') }

// Line is the next line that the program writes, without its end.
func (p *Process) Line(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the process ended before it wrote a line: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// Kill kills the process and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
