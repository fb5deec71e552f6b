package proctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit bounds a wait on a real process, on a machine that may be busy.
const limit = 30 * time.Second

func TestMain(m *testing.M) {
	Program(func() {
		fmt.Fprintln(os.Stderr, os.Args[1:])
		switch os.Args[1] {
		case "wait":
			_ = syscall.Pause() // until it is killed
		case "fail":
			os.Exit(3)
		}
	})
	os.Exit(m.Run())
}

func TestProcess(t *testing.T) {
	for mode, want := range map[string]int{"end": 0, "fail": 3} {
		p := Start(t, mode, mode, "x")
		code := 0
		if err := p.End(limit); err != nil {
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatal(err)
			}
			code = exit.ExitCode()
		}
		if code != want || p.Log.String() != "["+mode+" x]\n" {
			t.Errorf("%s ended with %d, want %d, and logged %q", mode, code, want, p.Log)
		}
	}
}

func TestProcessEndsWithItsTest(t *testing.T) {
	var p *Process
	t.Run("starts it", func(t *testing.T) {
		p = Start(t, "wait", "wait")
		p.Await(limit, "it runs", func() bool { return p.Log.String() == "[wait]\n" })
		if err := syscall.Kill(p.PID(), 0); err != nil {
			t.Errorf("a process that runs: %v", err)
		}
	})
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process after its test: %v", err)
	}
}

// failing is a test of which only the failure counts.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// fails runs f as a test does, and returns what its failure says.
func fails(t *testing.T, f func(testing.TB)) string {
	var ends sync.WaitGroup
	test := &failing{TB: t}
	ends.Go(func() { f(test) })
	ends.Wait()
	return test.said
}

func TestFailures(t *testing.T) {
	never := func() bool { return false }
	for want, f := range map[string]func(testing.TB){
		"not within 3ms: it comes": func(t testing.TB) { Await(t, 3*time.Millisecond, "it comes", never) },
		"fail has ended with exit status 3: waited in vain for: it comes": func(t testing.TB) {
			Start(t, "fail", "fail").Await(time.Hour, "it comes", never)
		},
		"send terminated to end: os: process already finished": func(t testing.TB) {
			p := Start(t, "end", "end")
			_ = p.End(limit)
			p.Signal(syscall.SIGTERM)
		},
		"wait has not ended within 3ms": func(t testing.TB) { _ = Start(t, "wait", "wait").End(3 * time.Millisecond) },
	} {
		if got := fails(t, f); got != want {
			t.Errorf("failed with %q, want %q", got, want)
		}
	}
	if got := fails(t, func(t testing.TB) { Await(t, limit, "it is so", func() bool { return true }) }); got != "" {
		t.Errorf("what holds failed with %q", got)
	}
}

func TestBufferIsReadWhileItIsWritten(t *testing.T) {
	var b Buffer
	var writes sync.WaitGroup
	for range 4 {
		writes.Go(func() {
			for range 100 {
				fmt.Fprint(&b, "ab")
			}
		})
	}
	for range 100 {
		if got := b.String(); strings.ReplaceAll(got, "ab", "") != "" {
			t.Fatalf("half of a write was read: %q", got)
		}
	}
	writes.Wait()
	if got := b.String(); got != strings.Repeat("ab", 400) {
		t.Errorf("%d bytes were kept", len(got))
	}
}

func TestAgain(t *testing.T) {
	if IsAgain() {
		return
	}
	if Again(t, exec.Command("/proc/self/exe")); IsAgain() {
		t.Error("the first process takes itself for the second")
	}
}
