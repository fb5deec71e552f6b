// Package proctest starts programs as real processes for tests that kill them, signal them and read their logs.
//
// The binary of the test is also the program: TestMain calls Program, and Start starts the binary again. Await waits
// for events between processes, in real time. Every process ends with the test, even if the test is killed. If a
// test fails, it shows the logs of its processes.
package proctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programEnv says to a test's binary that it is the program.
const programEnv = "MICROLET_TEST_PROGRAM"

// Program is what TestMain calls first: in a process that Command made, and in those that the program itself starts
// with a word as its first argument, it is main and then exits with 0. In the process of the tests, which has flags as
// arguments, it does nothing.
func Program(main func()) {
	word := len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-")
	if os.Getenv(programEnv) == "" && !word {
		return
	}
	main()
	os.Exit(0)
}

// Command is the test's binary as the program, with these arguments. It is killed when the context or the
// process that starts it ends.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Install writes a copy of the test's binary to path, for a program that is known by the name of its file. TestMain
// asks for that name.
func Install(t testing.TB, path string, mode os.FileMode) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	// What WriteFile gives is subject to the umask.
	if err := errors.Join(os.WriteFile(path, program, mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// Process is a program that runs.
type Process struct {
	// Log is its standard error.
	Log *Buffer

	t     testing.TB
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // once it has ended
}

// Start starts the program, which is killed when the test ends. The name is for messages.
func Start(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	// Not the test's context, which ends before the test's own cleanup does.
	p := &Process{
		Log:   &Buffer{},
		t:     t,
		name:  name,
		cmd:   Command(context.Background(), args...),
		ended: make(chan struct{}),
	}
	p.cmd.Stderr = p.Log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() || testing.Verbose() {
			t.Logf("log of %s:\n%s", name, p.Log)
		}
	})
	return p
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal, which fails the test if the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// Kill kills the process and waits until it is gone; it may be gone already.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill %s: %v", p.name, err)
	}
	<-p.ended
}

// End waits for the process's end, which must come within the limit, and returns how it ended: nil is exit
// status 0.
func (p *Process) End(within time.Duration) error {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		p.t.Fatalf("%s has not ended within %v", p.name, within)
	}
	return p.err
}

// Alive reports whether a process runs. One that has ended and was not waited for does not.
func Alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// Await is the package's Await for what cannot come once the process has ended.
func (p *Process) Await(within time.Duration, what string, holds func() bool) time.Duration {
	p.t.Helper()
	return Await(p.t, within, what, func() bool {
		p.t.Helper()
		if holds() {
			return true
		}
		select {
		case <-p.ended:
			p.t.Fatalf("%s has ended with %v: waited in vain for: %s", p.name, p.err, what)
		default:
		}
		return false
	})
}

// Await waits until something holds, which it must within the limit, and returns how long that took.
// Between real processes and connections there is no virtual time.
func Await(t testing.TB, within time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
	return time.Since(began)
}

// Buffer keeps what is written, and can be read meanwhile. Its zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer; it never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
