package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/microlet/internal/limit"
)

// These tests start real processes: this test binary, which behaves as the variable says.
const behaviourEnv = "SUPERVISOR_TEST_BEHAVIOUR"

// waitLimit bounds a wait on real processes, on a machine that may be busy.
const waitLimit = 60 * time.Second

func TestMain(m *testing.M) {
	if b := os.Getenv(behaviourEnv); b != "" {
		if err := behave(b); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// behave is the main of a child.
func behave(behaviour string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	n, err := run.NewNotifier()
	if err != nil {
		return err
	}
	ctx := run.Signals(context.Background())
	fmt.Fprintln(os.Stderr, "plain line of", behaviour)
	switch behaviour {
	case "good":
		return serve(ctx, n)
	case "touch":
		return touch(ctx, n)
	case "hung": // ready, and then no sign of life
		if err := n.Notify(run.NotifyReady); err != nil {
			return err
		}
		select {}
	case "crash":
		return fmt.Errorf("crashed")
	case "proxy": // its child says READY in its name
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), behaviourEnv+"=speak", "NOTIFY_SOCKET="+socket)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return err
		}
		if err := n.Notify(run.NotifyStatus + "my child has spoken"); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	case "speak":
		return n.Notify(run.NotifyReady)
	case "change":
		return change(ctx, n)
	case "keep":
		return keep(ctx, n)
	case "answer":
		return answer(ctx, n)
	case "parent", "daemon": // leaves a child of its own behind, a daemon in a session of its own
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: behaviour == "daemon"}
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := n.Notify(run.NotifyReady, run.NotifyStatus+strconv.Itoa(cmd.Process.Pid)); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	case "supervisor": // supervises one good process of its own, and is killed
		return superviseGood(ctx)
	}
	return fmt.Errorf("no behaviour %q", behaviour)
}

func serve(ctx context.Context, n *run.Notifier) error {
	if err := n.Notify(run.NotifyReady, run.NotifyStatus+"serving"); err != nil {
		return err
	}
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return n.Notify(run.NotifyStopping)
		case <-t.C:
			if err := n.Notify(run.NotifyWatchdog); err != nil {
				return err
			}
		}
	}
}

func superviseGood(ctx context.Context) error {
	var s *Supervisor
	s, err := New(Options{
		Specs: []Spec{{
			Name:            "good",
			Path:            os.Args[0],
			UID:             47102,
			GID:             47100,
			NoNewPrivileges: true,
			Env:             []string{behaviourEnv + "=good"},
		}},
		NotifyDir: os.Getenv("NOTIFY_DIR"),
		Output:    os.Stderr,
		OnReady:   func(string) { fmt.Println(s.Processes()[0].PID) },
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// notifyDir is a folder that a child of any user may enter.
func notifyDir(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they become other users")
	}
	return proctest.TempDir(t, 0o755)
}

// supervise runs a supervisor of one process until the test ends.
func supervise(t *testing.T, spec Spec, behaviour string, o Options) (*Supervisor, *proctest.Buffer, *proctest.Buffer) {
	t.Helper()
	output, log := &proctest.Buffer{}, &proctest.Buffer{}
	if spec.Path == "" {
		spec.Path = os.Args[0]
	}
	spec.Env = append(spec.Env, "PATH="+os.Getenv("PATH"), behaviourEnv+"="+behaviour)
	o.StopTimeout = 2 * time.Second // one of them hangs
	o.Specs, o.NotifyDir, o.Output = []Spec{spec}, notifyDir(t), output
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("supervisor's log:\n%s\noutput:\n%s", log, output)
		}
	})
	return s, output, log
}

// until waits for a condition of real processes.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	proctest.Await(t, waitLimit, what, ok)
}

func state(s *Supervisor) Process { return s.Processes()[0] }

func TestIdentityOfAProcess(t *testing.T) {
	own := statusFields(t, os.Getpid())
	for _, c := range []struct {
		spec Spec
		want map[string]string
	}{
		{Spec{Name: "plain", UID: 47102, GID: 47100, NoNewPrivileges: true}, map[string]string{
			"Uid":        "47102 47102 47102 47102",
			"Gid":        "47100 47100 47100 47100",
			"Groups":     "",
			"CapEff":     "0000000000000000",
			"CapPrm":     "0000000000000000",
			"CapInh":     "0000000000000000",
			"CapAmb":     "0000000000000000",
			"CapBnd":     "0000000000000000",
			"NoNewPrivs": "1",
		}},
		{Spec{Name: "able", UID: 47107, GID: 47100, Groups: []int{47109},
			Capabilities: []string{"CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}, NoNewPrivileges: true}, map[string]string{
			"Uid":        "47107 47107 47107 47107",
			"Groups":     "47109",
			"CapEff":     "0000000400000004",
			"CapPrm":     "0000000400000004",
			"CapAmb":     "0000000400000004",
			"CapBnd":     "0000000400000004",
			"NoNewPrivs": "1",
		}},
		{Spec{Name: "root"}, map[string]string{"Uid": "0 0 0 0", "CapEff": own["CapEff"], "CapBnd": own["CapBnd"],
			"NoNewPrivs": "0"}},
	} {
		t.Run(c.spec.Name, func(t *testing.T) {
			s, _, _ := supervise(t, c.spec, "good", Options{})
			until(t, "ready", func() bool { return state(s).State == Ready })
			got := statusFields(t, state(s).PID)
			for key, want := range c.want {
				if got[key] != want {
					t.Errorf("%s is %q, want %q", key, got[key], want)
				}
			}
		})
	}
}

// TestAnotherProgramRuns where the first is gone, or is none.
func TestAnotherProgramRuns(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"absent": text + ".absent", "no program": text} {
		t.Run(name, func(t *testing.T) {
			s, _, log := supervise(t, Spec{Name: "process", Path: path, Fallback: os.Args[0]}, "good", Options{})
			until(t, "ready", func() bool { return state(s).State == Ready })
			if !strings.Contains(log.String(), "another one runs in its place") {
				t.Errorf("the log does not say it:\n%s", log)
			}
		})
	}
}

// TestAReplacedProgramRuns although its user may not enter the folder that it lies in.
func TestAReplacedProgramRuns(t *testing.T) {
	path := filepath.Join(proctest.TempDir(t, 0o700), "program")
	install := func() {
		t.Helper()
		program, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		err = os.WriteFile(path+".next", program, 0o755)
		if err := errors.Join(err, os.Rename(path+".next", path)); err != nil {
			t.Fatal(err)
		}
	}
	runsNewest := func(p Process) bool {
		is, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
		if err != nil {
			return false
		}
		newest, err := os.Stat(path)
		return err == nil && os.SameFile(is, newest)
	}
	install()
	s, _, _ := supervise(t, Spec{Name: "process", Path: path, UID: 47102, GID: 47100}, "good", Options{})
	until(t, "ready", func() bool { return state(s).State == Ready })
	first := state(s)
	if !runsNewest(first) {
		t.Error("another program runs")
	}
	install()
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "ready again", func() bool { return state(s).State == Ready && state(s).PID != first.PID })
	if !runsNewest(state(s)) {
		t.Error("the program that was replaced runs")
	}
}

func TestProcessThatGivesWay(t *testing.T) {
	niceness := func(pid int) int {
		raw, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
		if err != nil {
			t.Fatal(err)
		}
		return 20 - raw
	}
	own := niceness(0)
	for _, spec := range []Spec{
		{Name: "plain"}, {Name: "nice", Nice: 5}, {Name: "bound", Nice: 5, UID: 47102, GID: 47100, NoNewPrivileges: true},
		{Name: "nicest", Nice: 100},
	} {
		s, _, _ := supervise(t, spec, "good", Options{})
		until(t, "ready", func() bool { return state(s).State == Ready })
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", state(s).PID))
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := niceness(id), min(own+spec.Nice, 19); got != want {
				t.Errorf("%s: a thread's niceness is %d, want %d", spec.Name, got, want)
			}
			slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", id))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(slack)); got != "1000000" {
				t.Errorf("%s: a thread's timer slack is %s ns, want 1000000", spec.Name, got)
			}
		}
	}
	if now := niceness(os.Getpid()); now != own {
		t.Errorf("the supervisor's own niceness went from %d to %d", own, now)
	}
}

// statusFields are the fields of /proc/<pid>/status.
func statusFields(t *testing.T, pid int) map[string]string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for _, line := range strings.Split(string(data), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			fields[key] = strings.Join(strings.Fields(value), " ")
		}
	}
	return fields
}

func TestUnknownCapabilityIsRefused(t *testing.T) {
	s, _, _ := supervise(t, Spec{Name: "odd", UID: 47102, GID: 47100, Capabilities: []string{"CAP_FLY"}}, "good",
		Options{})
	until(t, "error", func() bool { return strings.Contains(state(s).LastExit, "CAP_FLY") })
}

func TestKilledProcessIsBackAtOnce(t *testing.T) {
	s, output, _ := supervise(t, Spec{Name: "good"}, "good", Options{Watchdog: 30 * time.Second})
	until(t, "ready", func() bool { return state(s).State == Ready && state(s).Status == "serving" })
	first := state(s)
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "ready again", func() bool { p := state(s); return p.Restarts == 1 && p.State == Ready })
	again := state(s)
	if again.PID == first.PID || again.LastExit != "signal: killed" {
		t.Errorf("account is %+v", again)
	}
	if pss, err := PSS(again.PID); err != nil || pss < 1<<20 {
		t.Errorf("PSS is %d, %v", pss, err)
	}
	until(t, "its output, labelled", func() bool {
		return strings.Count(output.String(), `msg="process output" service=good line="plain line of good"`) == 2
	})
}

func TestHungProcessIsAbortedAndKilled(t *testing.T) {
	s, output, _ := supervise(t, Spec{Name: "hung"}, "hung", Options{Watchdog: time.Second})
	until(t, "restart", func() bool { return state(s).Restarts >= 1 })
	if p := state(s); p.LastExit != "watchdog: silent for 1s" {
		t.Errorf("account is %+v", p)
	}
	until(t, "goroutine dump, labelled", func() bool {
		return strings.Contains(output.String(), `service=hung line="goroutine `)
	})
}

func TestStoppedProcessIsKilled(t *testing.T) {
	s, _, _ := supervise(t, Spec{Name: "good"}, "good", Options{Watchdog: 2 * time.Second})
	until(t, "ready", func() bool { return state(s).State == Ready })
	if err := syscall.Kill(state(s).PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "ready again", func() bool { p := state(s); return p.Restarts == 1 && p.State == Ready })
}

func TestCrashingProcessIsStartedAgainAndAgain(t *testing.T) {
	s, _, _ := supervise(t, Spec{Name: "crash"}, "crash", Options{})
	until(t, "three restarts", func() bool { return state(s).Restarts >= 3 })
	if p := state(s); p.LastExit != "exit status 1" {
		t.Errorf("account is %+v", p)
	}
}

// A process that is not the supervised one may not speak in its name, though it runs as the same user.
func TestNotificationOfAnotherProcessIsRefused(t *testing.T) {
	s, _, log := supervise(t, Spec{Name: "proxy"}, "proxy", Options{})
	until(t, "the process's own word", func() bool { return state(s).Status == "my child has spoken" })
	if p := state(s); p.State != Starting {
		t.Errorf("its child made it ready: %+v", p)
	}
	if !strings.Contains(log.String(), "notification refused") {
		t.Error("the refusal is not logged")
	}
	// The control: the same word from the process itself counts.
	good, _, _ := supervise(t, Spec{Name: "good"}, "good", Options{})
	until(t, "ready", func() bool { return state(good).State == Ready })
}

func TestWhatAProcessLeavesBehindEndsWithIt(t *testing.T) {
	s, _, _ := supervise(t, Spec{Name: "parent"}, "parent", Options{})
	until(t, "ready", func() bool { return state(s).State == Ready })
	p := state(s)
	child, err := strconv.Atoi(p.Status)
	if err != nil {
		t.Fatal(err)
	}
	if !proctest.Alive(child) {
		t.Fatal("the child does not run: this test cannot fail")
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the child's end", func() bool { return !proctest.Alive(child) })
}

// TestEnvironmentIsTheSpecs: what the supervisor knows from its own environment is not its processes'.
// TestADaemonOfAProcessEndsWithIt: a process in a session of its own is in no group of the process that has started it,
// but in its cgroup.
func TestADaemonOfAProcessEndsWithIt(t *testing.T) {
	cgroups, err := limit.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroups.Make("daemon", limit.Limits{Memory: 1 << 30, Tasks: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proctest.Await(t, waitLimit, "the removal of the cgroup", func() bool { return group.Remove() == nil })
	})
	s, _, _ := supervise(t, Spec{Name: "daemon", Cgroup: group}, "daemon", Options{})
	until(t, "READY", func() bool { return state(s).Status != "" })
	p := state(s)
	child, err := strconv.Atoi(p.Status)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the child", func() bool { return errors.Is(syscall.Kill(child, 0), syscall.ESRCH) })
	until(t, "the next start", func() bool { now := state(s); return now.State == Ready && now.PID != p.PID })
}

func TestEnvironmentIsTheSpecs(t *testing.T) {
	t.Setenv("SUPERVISOR_TEST_SECRET", "hunter2")
	s, _, _ := supervise(t, Spec{Name: "p", Env: []string{"GIVEN=1"}}, "good", Options{Watchdog: waitLimit})
	until(t, "READY", func() bool { return s.Processes()[0].State == Ready })
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.Processes()[0].PID))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, variable := range strings.Split(strings.TrimRight(string(data), "\x00"), "\x00") {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
	}
	if want := []string{"GIVEN", "PATH", behaviourEnv, "NOTIFY_SOCKET", "WATCHDOG_USEC"}; !slices.Equal(names, want) {
		t.Errorf("the process has %q, want %q", names, want)
	}
}

// The parent-death signal is cleared by changes of identity in the wrong order, so only a kill shows
// that it is there.
func TestProcessesDieWithTheSupervisor(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), behaviourEnv+"=supervisor", "NOTIFY_DIR="+notifyDir(t))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal("no ready child: ", err)
	}
	if uid := statusFields(t, child)["Uid"]; !strings.HasPrefix(uid, "47102 ") || !proctest.Alive(child) {
		t.Fatalf("the child has uid %s", uid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	until(t, "the child's end", func() bool { return !proctest.Alive(child) })
}

func TestMailboxRefusesADatagramWithoutASender(t *testing.T) {
	if _, err := senderOf(nil); err == nil {
		t.Error("a datagram without credentials has a sender")
	}
	if _, err := senderOf(unix.UnixRights(0)); err == nil {
		t.Error("a datagram with a descriptor alone has a sender")
	}
}

// TestAProcessThatNotifiesWithoutEnd waits, and does not have the supervisor compute for it.
func TestAProcessThatNotifiesWithoutEnd(t *testing.T) {
	box, err := openMailbox(filepath.Join(notifyDir(t), "box.sock"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unixgram", box.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	notes, done := make(chan note), make(chan struct{})
	began := time.Now()
	go box.read(os.Getpid(), notes, nil, done, slog.New(slog.DiscardHandler), func() { t.Error("refused") })
	const more = noteRate / 2
	for range noteBurst + more {
		if _, err := conn.Write([]byte(run.NotifyWatchdog)); err != nil {
			t.Fatal(err)
		}
		<-notes
	}
	if took := time.Since(began); took < more*time.Second/noteRate {
		t.Errorf("%d notifications take %v", noteBurst+more, took)
	}
	close(done)
	if err := box.close(); err != nil {
		t.Error(err)
	}
}

// TestNotificationsFillNoLog: a process may send any number of notifications that count for nothing.
func TestNotificationsFillNoLog(t *testing.T) {
	box, err := openMailbox(filepath.Join(notifyDir(t), "box.sock"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unixgram", box.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	log, refused := &proctest.Buffer{}, make(chan struct{}, 1000)
	notes, done := make(chan note), make(chan struct{})
	for _, pid := range []int{1, os.Getpid()} { // another's, and one that may keep no files
		go box.read(pid, notes, nil, done, slog.New(slog.NewTextHandler(log, nil)), func() { refused <- struct{}{} })
		for range 100 {
			if _, err := conn.Write([]byte("FDSTORE=1\nFDNAME=x")); err != nil {
				t.Fatal(err)
			}
			if pid == 1 {
				<-refused
			} else {
				<-notes
			}
		}
		if pid == 1 {
			if err := box.close(); err != nil { // which ends the first reader
				t.Fatal(err)
			}
			<-notes
			notes = make(chan note)
			if box, err = openMailbox(box.path, os.Getuid()); err != nil {
				t.Fatal(err)
			}
			if conn, err = net.Dial("unixgram", box.path); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(done)
	if err := box.close(); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines of 200 notifications", lines)
	}
}
