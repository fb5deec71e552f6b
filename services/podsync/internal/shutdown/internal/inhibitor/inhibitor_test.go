package inhibitor

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/logindtest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const limit = 30 * time.Second

// supervisor keeps a copy of each file, as a supervisor does.
type supervisor struct {
	mu    sync.Mutex
	files map[string]*os.File
}

func (s *supervisor) Take(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		return duplicate(f)
	}
	return nil
}

func (s *supervisor) Keep(name string, f *os.File) {
	s.Drop(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = duplicate(f)
}

func (s *supervisor) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		_ = f.Close()
		delete(s.files, name)
	}
}

func duplicate(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

type process struct {
	*Inhibitor
	states chan bool
	kill   func()
}

// start starts a process that holds the inhibitor; kill ends it, and closes its files as the kernel does.
func start(t *testing.T, l *logindtest.Logind, kept Kept, delay time.Duration) *process {
	t.Helper()
	p := &process{states: make(chan bool, 100)}
	p.Inhibitor = New(Options{
		Delay: delay, Conf: l.Conf, Kept: kept, Changed: func(down bool) { p.states <- down },
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	var once sync.Once
	p.kill = func() {
		once.Do(func() {
			cancel()
			<-ended
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.file != nil {
				_ = p.file.Close()
			}
		})
	}
	t.Cleanup(p.kill)
	return p
}

func TestAShutdownWaitsForTheRelease(t *testing.T) {
	l := logindtest.Start(t)
	p := start(t, l, &supervisor{files: map[string]*os.File{}}, 90*time.Second)
	proctest.Await(t, limit, "an inhibitor", func() bool { return l.Inhibitors() == 1 })
	if l.Delay() != 90*time.Second {
		t.Errorf("logind waits %v, want 90 s", l.Delay())
	}
	if text, err := os.ReadFile(l.Conf); err != nil ||
		!strings.Contains(string(text), "[Login]\nInhibitDelayMaxSec=90\n") {
		t.Errorf("drop-in is %q, %v", text, err)
	}
	if <-p.states {
		t.Error("a shutdown is under way at first")
	}
	l.Begin(t)
	if !<-p.states {
		t.Error("the shutdown was not seen")
	}
	if got := testutil.ToFloat64(p.held); got != 1 {
		t.Errorf("the gauge is %v, want 1", got)
	}
	p.Release()
	proctest.Await(t, limit, "the machine goes on", func() bool { return l.Inhibitors() == 0 })
	if got := testutil.ToFloat64(p.held); got != 0 {
		t.Errorf("the gauge is %v, want 0", got)
	}
	l.Cancel(t)
	if <-p.states {
		t.Error("the cancellation was not seen")
	}
	proctest.Await(t, limit, "a new inhibitor", func() bool { return l.Inhibitors() == 1 })
}

func TestTheMachineWaitsForAKilledProcess(t *testing.T) {
	l := logindtest.Start(t)
	kept := &supervisor{files: map[string]*os.File{}}
	first := start(t, l, kept, time.Second)
	proctest.Await(t, limit, "an inhibitor", func() bool { return testutil.ToFloat64(first.held) == 1 })
	if _, err := os.Stat(filepath.Dir(l.Conf)); err == nil {
		t.Error("logind's limit of 5 s was changed for one of 1 s")
	}
	l.Begin(t)
	first.kill()
	time.Sleep(300 * time.Millisecond) // longer than the fake keeps its own copy
	if n := l.Inhibitors(); n != 1 {
		t.Fatalf("%d inhibitors while the process restarts, want 1", n)
	}
	second := start(t, l, kept, time.Second)
	if !<-second.states {
		t.Error("the second process does not see the shutdown")
	}
	if got := testutil.ToFloat64(second.held); got != 1 {
		t.Errorf("the gauge is %v, want 1", got)
	}
	second.Release()
	proctest.Await(t, limit, "the machine goes on", func() bool { return l.Inhibitors() == 0 })
	if n := l.Taken(); n != 1 {
		t.Errorf("%d inhibitors were taken, want 1", n)
	}
}

func TestARestartReplacesTheInhibitor(t *testing.T) {
	l := logindtest.Start(t)
	kept := &supervisor{files: map[string]*os.File{}}
	first := start(t, l, kept, time.Second)
	proctest.Await(t, limit, "an inhibitor", func() bool { return testutil.ToFloat64(first.held) == 1 })
	first.kill()
	start(t, l, kept, time.Second)
	proctest.Await(t, limit, "the second inhibitor alone", func() bool { return l.Taken() == 2 && l.Inhibitors() == 1 })
}

func TestWithoutLogind(t *testing.T) {
	l := logindtest.Start(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	p := start(t, l, &supervisor{files: map[string]*os.File{}}, time.Second)
	if err := p.Look(t.Context()); err == nil {
		t.Error("looked at nothing")
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", l.Address())
	proctest.Await(t, limit, "an inhibitor once logind is there", func() bool { return l.Inhibitors() == 1 })
}
