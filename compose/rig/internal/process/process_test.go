package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	rest := " S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200\n"
	for _, tc := range []struct {
		name, text, wantErr string
		want                Stat
	}{
		{name: "plain", text: "12 (etcd)" + rest,
			want: Stat{PID: 12, Command: "etcd", State: 'S', Parent: 7, Threads: 1, StartTime: 4242}},
		{name: "hostile command", text: "12 (a) R (b c)" + rest,
			want: Stat{PID: 12, Command: "a) R (b c", State: 'S', Parent: 7, Threads: 1, StartTime: 4242}},
		{name: "empty", text: "", wantErr: "no command"},
		{name: "short", text: "12 (etcd) S 7", wantErr: "fields after the command"},
		{name: "no pid", text: "x (etcd)" + rest, wantErr: "pid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseStat(tc.text)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("stat (-want +got):\n%s", diff)
			}
		})
	}
}

// firstThreadEnds has this program end its first thread and go on until its standard input ends.
const firstThreadEnds = "PROCESS_TEST_FIRST_THREAD_ENDS"

func init() {
	if os.Getenv(firstThreadEnds) == "" {
		return
	}
	begun := make(chan struct{})
	go func() {
		close(begun)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	<-begun                                        // so that another thread runs
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // init functions run in the first thread
}

// A process whose first thread has ended looks like one that has ended, and still has its files and locks.
func TestAProcessLivesAsLongAsItsThreads(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), firstThreadEnds+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	r, err := Find("threads", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if s, err := ReadStat(r.PID); err == nil && s.State == 'Z' {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its first thread has not ended")
		}
	}
	if !r.Alive() {
		t.Error("a process counts as dead although one of its threads lives")
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if r.Alive() {
		t.Error("a process counts as alive after its end")
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (etcd) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200\n")
	f.Add(")(")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseStat(text); err == nil && s.State == 0 {
			t.Errorf("accepted %q without a state", text)
		}
	})
}

func TestCgroupPaths(t *testing.T) {
	got := CgroupPaths("5:memory:/a/b\n4:cpu:/a/b\n1:name=systemd:/x:y\n0::/\nbroken\n")
	if diff := cmp.Diff([]string{"/a/b", "/x:y", "/"}, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func start(t *testing.T, script string) (Record, string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	r, err := Start(Spec{Name: "probe", Path: "/bin/sh", Args: []string{"-c", script}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return r, log
}

func TestRecordOfAnotherStartTimeIsNeverSignalled(t *testing.T) {
	r, _ := start(t, "exec sleep 60")
	stranger := r
	stranger.StartTime++
	if stranger.Alive() {
		t.Error("a record with another start time counts as alive")
	}
	if err := stranger.Signal(unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signal to a stranger: %v, want ErrGone", err)
	}
	if !r.Alive() {
		t.Error("the process was hit by a signal that was not for it")
	}
}

func TestStopKillsWhatIgnoresTerm(t *testing.T) {
	r, log := start(t, `trap "" TERM; echo set; while :; do sleep 1; done`)
	if err := Await(t.Context(), r, log, func(context.Context) error {
		if Tail(log, 1) != "set" {
			return errors.New("the trap is not set")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r.Alive() {
		t.Error("still alive after Stop")
	}
	if err := r.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestAwaitTellsWhyAProcessEnded(t *testing.T) {
	r, log := start(t, `echo "flag provided but not defined"; exit 1`)
	err := Await(t.Context(), r, log, func(context.Context) error { return errors.New("refused") })
	if err == nil || !strings.Contains(err.Error(), "flag provided but not defined") {
		t.Errorf("error %v, want the end of the log in it", err)
	}
}

func TestStartEntersCgroupsFirst(t *testing.T) {
	procs := filepath.Join(t.TempDir(), "cgroup.procs")
	log := filepath.Join(t.TempDir(), "log")
	r, err := Start(Spec{
		Name:    "probe",
		Path:    "/bin/sh",
		Args:    []string{"-c", "cat " + procs},
		Log:     log,
		Cgroups: []string{procs},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(procs)
	if err != nil {
		t.Fatal(err)
	}
	if got := Tail(log, 1); got != strings.TrimSpace(string(pid)) {
		t.Errorf("the program saw %q in its cgroup, want its pid %q", got, pid)
	}
}

// What a caller was started with, such as the lock of its starter, is not the program's, which outlives both.
func TestAProgramInheritsNoDescriptor(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := unix.FcntlInt(lock.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	r, err := Start(Spec{Name: "sleep", Path: "/bin/sleep", Args: []string{"1000"}, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(r.PID, unix.SIGKILL) })
	for _, e := range entries(t, fmt.Sprintf("/proc/%d/fd", r.PID)) {
		if at, err := os.Readlink(e); err == nil && at == lock.Name() {
			t.Errorf("%s is %s", e, at)
		}
	}
}

func entries(t *testing.T, dir string) (paths []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}
