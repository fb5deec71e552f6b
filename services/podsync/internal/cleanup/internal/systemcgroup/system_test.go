package systemcgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	inV1Root = "3:name=systemd:/\n2:cpu,cpuacct:/\n1:memory:/\n4:devices:/\n0::/\n"
	inV2Root = "0::/\n"
	program  = "/usr/bin/microlet"
)

// fake is a machine of processes, of which a Mover sees what /proc shows.
type fake struct {
	*testing.T
	dir   string
	moves []string // when, and of which process
	began time.Time
	fails map[int]error
	log   strings.Builder
}

func newFake(t *testing.T) *fake {
	return &fake{T: t, dir: t.TempDir(), began: time.Now(), fails: map[int]error{}}
}

func (f *fake) mover() *Mover {
	f.Helper()
	fs, err := procfs.NewFS(f.dir)
	if err != nil {
		f.Fatal(err)
	}
	return &Mover{cgroup: "/system", programs: agentPrograms(program), processes: fs, move: f.move,
		joined: []string{"", "cpu", "cpuacct", "memory", "systemd", "name=systemd"},
		log:    slog.New(slog.NewTextHandler(&f.log, nil))}
}

func (f *fake) move(pid int) error {
	f.moves = append(f.moves, fmt.Sprintf("%v: %d", time.Since(f.began), pid))
	if err := f.fails[pid]; err != nil {
		return err
	}
	f.write(pid, "cgroup", strings.ReplaceAll(f.read(pid, "cgroup"), ":/\n", ":/system\n"))
	return nil
}

func (f *fake) read(pid int, name string) string {
	text, err := os.ReadFile(filepath.Join(f.dir, strconv.Itoa(pid), name))
	if err != nil {
		f.Fatal(err)
	}
	return string(text)
}

func (f *fake) write(pid int, name, text string) {
	if err := os.WriteFile(filepath.Join(f.dir, strconv.Itoa(pid), name), []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// run starts a process.
func (f *fake) run(pid, flags int, state, exe, cgroups string) {
	f.Helper()
	if err := os.Mkdir(filepath.Join(f.dir, strconv.Itoa(pid)), 0o700); err != nil {
		f.Fatal(err)
	}
	f.write(pid, "stat", fmt.Sprintf("%d (a) b) %s 0 0 0 0 0 %d %s\n", pid, state, flags, strings.Repeat("7 ", 43)))
	f.write(pid, "cgroup", cgroups)
	if exe != "" {
		if err := os.Symlink(exe, filepath.Join(f.dir, strconv.Itoa(pid), "exe")); err != nil {
			f.Fatal(err)
		}
	}
}

// end ends a process.
func (f *fake) end(pid int) {
	if err := os.RemoveAll(filepath.Join(f.dir, strconv.Itoa(pid))); err != nil {
		f.Fatal(err)
	}
}

// Only what is in the root cgroup, and no part of the kernel, the init system or the node agent, is moved.
func TestWhatIsMoved(t *testing.T) {
	const exiting, kernelThread = 0x4, 0x200000
	for _, test := range []struct {
		name    string
		pid     int
		flags   int
		state   string
		exe     string
		cgroups string
		want    bool
	}{
		{"process, cgroup v2", 42, 0, "S", "/bin/sleep", inV2Root, true},
		{"process, cgroup v1", 42, 0, "R", "/bin/sleep", inV1Root, true},
		{"stopped process", 42, 0, "T", "/bin/sleep", inV2Root, true},
		{"program with a removed file", 42, 0, "S", "/bin/sleep (deleted)", inV2Root, true},
		{"init", 1, 0, "S", "/sbin/init", inV2Root, false},
		{"kernel thread", 42, kernelThread, "I", "", inV2Root, false},
		{"zombie", 42, exiting, "Z", "", inV1Root, false},
		{"main thread that exits", 42, exiting, "S", "/bin/sleep", inV1Root, false},
		{"dead process", 42, 0, "X", "", inV1Root, false},
		{"node agent", 42, 0, "S", program, inV2Root, false},
		{"node agent before an upgrade", 42, 0, "S", program + " (deleted)", inV2Root, false},
		{"service with a smaller program", 42, 0, "S", "/usr/bin/microlet-local", inV2Root, false},
		{"such a service before an upgrade", 42, 0, "S", "/usr/bin/microlet-local (deleted)", inV1Root, false},
		{"program of that name elsewhere", 42, 0, "S", "/tmp/microlet-local", inV2Root, true},
		{"unit, cgroup v2", 42, 0, "S", "/bin/sleep", "0::/system.slice/a.service\n", false},
		{"unit, cgroup v1", 42, 0, "S", "/bin/sleep",
			strings.Replace(inV1Root, "systemd:/", "systemd:/system.slice/a.service", 1), false},
		{"container", 42, 0, "S", "/bin/sleep", strings.ReplaceAll(inV1Root, ":/\n", ":/kubepods/podx/y\n"), false},
		{"limited memory", 42, 0, "S", "/bin/sleep", strings.Replace(inV1Root, "memory:/", "memory:/a", 1), false},
		{"devices alone", 42, 0, "S", "/bin/sleep", strings.Replace(inV1Root, "devices:/", "devices:/a", 1), false},
		{"outside of the cgroup namespace", 42, 0, "S", "/bin/sleep", "0::/..\n", false},
		{"below the cgroup", 42, 0, "S", "/bin/sleep", "0::/system/a\n", false},
		{"moved, cgroup v2", 42, 0, "S", "/bin/sleep", "0::/system\n", false},
		{"moved, cgroup v1", 42, 0, "S", "/bin/sleep",
			"3:name=systemd:/system\n2:cpu,cpuacct:/system\n1:memory:/system\n4:devices:/\n0::/system\n", false},
		{"half moved, cgroup v1", 42, 0, "S", "/bin/sleep", strings.Replace(inV1Root, "memory:/", "memory:/system", 1), true},
		{"no cgroups", 42, 0, "S", "/bin/sleep", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			f.run(test.pid, test.flags, test.state, test.exe, test.cgroups)
			m := f.mover()
			m.look()
			if len(f.moves) > 0 {
				t.Errorf("moved at the first look")
			}
			m.look()
			if (len(f.moves) == 1) != test.want {
				t.Errorf("moves %v, want one: %v; %s", f.moves, test.want, &f.log)
			}
			m.look()
			if len(f.moves) > 1 {
				t.Errorf("moved again: %v", f.moves)
			}
		})
	}
}

// The first two looks are close to each other, all others a minute apart. What a runtime starts and moves into a
// container between two of them is left alone, and so is the next process with the number of one that was seen.
func TestTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.run(10, 0, "S", "/bin/a", inV2Root)
		f.run(11, 0, "S", "/bin/runc", inV2Root)
		f.run(12, 0, "S", "/bin/b", inV2Root)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.mover().Run(ctx) }()
		time.Sleep(5 * time.Second)
		f.write(11, "cgroup", "0::/kubepods/podx/y\n")
		f.end(12)
		f.run(12, 0, "S", "/bin/c", inV2Root)
		f.write(12, "stat", strings.ReplaceAll(f.read(12, "stat"), " 7", " 8"))
		time.Sleep(10 * time.Second)
		f.run(13, 0, "S", "/bin/d", inV2Root)
		time.Sleep(2*time.Minute + time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{"10s: 10", "1m10s: 12", "2m10s: 13"}
		if d := cmp.Diff(want, f.moves); d != "" {
			t.Errorf("moves: -want +got\n%s", d)
		}
		if !strings.Contains(f.log.String(), `msg="moved out of the root cgroup" cgroup=/system pids=[10]`) {
			t.Errorf("log: %s", &f.log)
		}
	})
}

// A process that cannot be moved keeps no other in the root, is tried again, and is logged once.
func TestFailure(t *testing.T) {
	f := newFake(t)
	for pid := range 4 {
		f.run(10+pid, 0, "S", "/bin/a", inV2Root)
	}
	f.fails[11], f.fails[12] = errors.New("invalid argument"), unix.ESRCH
	m := f.mover()
	for range 4 {
		m.look()
	}
	count := map[string]int{}
	for _, at := range f.moves {
		count[strings.Fields(at)[1]]++
	}
	if d := cmp.Diff(map[string]int{"10": 1, "11": 3, "12": 3, "13": 1}, count); d != "" {
		t.Errorf("moves: -want +got\n%s", d)
	}
	text := f.log.String()
	if strings.Count(text, "processes stay in the root cgroup") != 1 ||
		!strings.Contains(text, `value=/system err="process 11: invalid argument"`) {
		t.Errorf("log: %s", text)
	}
	delete(f.fails, 11)
	m.look()
	f.run(14, 0, "S", "/bin/a", inV2Root)
	f.fails[14] = errors.New("invalid argument")
	m.look()
	m.look()
	if text := f.log.String(); strings.Count(text, "processes stay in the root cgroup") != 2 {
		t.Errorf("log: %s", text)
	}
}

func TestNoProcesses(t *testing.T) {
	f := newFake(t)
	m := f.mover()
	f.dir = filepath.Join(f.dir, "gone")
	if err := os.RemoveAll(filepath.Dir(f.dir)); err != nil {
		t.Fatal(err)
	}
	m.look()
	if !strings.Contains(f.log.String(), "list processes") {
		t.Errorf("log: %s", &f.log)
	}
}

func TestMovesOnV1(t *testing.T) { inOwnRoot(t, false, testMoves) }

func TestMovesOnUnified(t *testing.T) { inOwnRoot(t, true, testMoves) }

// testMoves: the kernel moves what is in the root, in every hierarchy, and nothing else.
func testMoves(t *testing.T) {
	outside := cgroupOf(t, 1)
	rooted, elsewhere := sleep(t), sleep(t)
	for _, m := range hierarchies(t) {
		dir := makeCgroup(t, m, "elsewhere")
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(elsewhere)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := cgroupOf(t, elsewhere)
	if !strings.Contains(before, ":/elsewhere") || !strings.Contains(outside, ":/..") {
		t.Fatalf("a process elsewhere is in\n%s, and the first one in\n%s", before, outside)
	}
	var log strings.Builder
	m, err := New("system", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m.look()
	}
	for line := range strings.Lines(cgroupOf(t, rooted)) {
		isMounted := !isUnified(t, unifiedMount) || strings.HasPrefix(line, "0::")
		if isMounted && !strings.HasSuffix(line, ":/system\n") && !strings.Contains(line, ":devices:/\n") {
			t.Errorf("the process of the root is in %s", line)
		}
	}
	for pid, want := range map[int]string{1: outside, elsewhere: before} {
		if now := cgroupOf(t, pid); now != want {
			t.Errorf("process %d is in\n%s, was in\n%s", pid, now, want)
		}
	}
	if own := cgroupOf(t, os.Getpid()); strings.Contains(own, "/system") {
		t.Errorf("the mover's own program was moved: %s", own)
	}
	want := fmt.Sprintf("pids=[%d]", rooted)
	if text := log.String(); strings.Count(text, want) != 1 || strings.Contains(text, "stay in the root") {
		t.Errorf("log: %s", text)
	}
}

// sleep starts a process in the cgroup of this one, and returns its number.
func sleep(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has not ended
		_ = cmd.Wait()         // it was killed
	})
	return cmd.Process.Pid
}

func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
