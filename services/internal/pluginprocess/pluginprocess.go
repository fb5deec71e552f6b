// Package pluginprocess runs the process of a plugin so that nothing of it holds up its service.
//
// go-plugin takes a plugin for ended once its standard output and error are at their end. Processes that the plugin has
// started inherit them, and may run for as long as they like. So the plugin has a session and a process group of its
// own. The group ends with it, and its output ends soon after it, whatever else can still write there. It ends with its
// service, too.
package pluginprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// drainTime is how long the output of a plugin that has ended is read.
	drainTime = time.Second
	// endTime is how long a plugin may take to end when it is asked to, and how long the kernel may take to end one
	// that was killed.
	endTime = 5 * time.Second
)

// ErrLingers says that a plugin is not started, because the process before Lingers.
var ErrLingers = errors.New("its last process was killed and has not ended")

// Process is the process of a plugin. It implements go-plugin's runner.Runner. Make it with New.
type Process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	killed, ended  chan struct{}
	err            error // how it ended, once ended is closed

	mu       sync.Mutex
	pid      int  // 0 until it has started
	reaped   bool // its number may be another's by now
	lingered bool // longer than Wait waits
}

// New returns the process of this program, which has not started.
func New(path string) *Process {
	return &Process{
		cmd: &exec.Cmd{
			Path: path, Args: []string{path},
			SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
		},
		killed: make(chan struct{}), ended: make(chan struct{}),
	}
}

// With gives the process the environment and the standard input of a command, which is otherwise not used.
func (p *Process) With(given *exec.Cmd) *Process {
	p.cmd.Env, p.cmd.Stdin = given.Env, given.Stdin
	return p
}

// output is read until its end, or until its time is over.
type output struct{ *os.File }

func (o output) Read(b []byte) (int, error) {
	n, err := o.File.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

// Start implements runner.Runner.
func (p *Process) Start(context.Context) error {
	stdout, childsStdout, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	defer childsStdout.Close() // the child has its own
	stderr, childsStderr, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("standard error: %w", err), stdout.Close())
	}
	defer childsStderr.Close()
	p.stdout, p.stderr = output{stdout}, output{stderr}
	p.cmd.Stdout, p.cmd.Stderr = childsStdout, childsStderr
	started := make(chan error)
	go p.run(started) //nolint:gosec // it ends with the process, not with the call that starts it
	if err := <-started; err != nil {
		return errors.Join(err, stdout.Close(), stderr.Close())
	}
	return nil
}

// run starts the process and waits for its end, on one thread: the process is killed when the thread ends that has
// started it.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	p.mu.Lock()
	p.pid = p.cmd.Process.Pid
	p.mu.Unlock()
	started <- nil
	awaitEnd(p.pid)
	_ = p.Kill(context.Background()) // what it has left behind
	p.mu.Lock()
	p.err = p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	close(p.ended)
}

// awaitEnd waits for the end of a child without reaping it. Until then, no other process or group has its number.
func awaitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Kill implements runner.Runner. It kills the group of the process, and waits for nothing.
func (p *Process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return nil
	}
	if !p.reaped {
		_ = unix.Kill(-p.pid, unix.SIGKILL) // it may have ended
	}
	select {
	case <-p.killed:
		return nil
	default:
	}
	close(p.killed)
	until := time.Now().Add(drainTime)
	return errors.Join(p.stdout.SetReadDeadline(until), p.stderr.SetReadDeadline(until))
}

// Wait implements runner.Runner. go-plugin calls it when it has read the output. A process that was killed and does not
// end, because it waits in the kernel, is left behind.
func (p *Process) Wait(context.Context) error {
	defer p.stdout.Close()
	defer p.stderr.Close()
	<-p.killed // at its end, too
	select {
	case <-p.ended:
		return p.err
	case <-time.After(endTime):
		p.mu.Lock()
		defer p.mu.Unlock()
		p.lingered = true
		return errors.New("it was killed and has not ended")
	}
}

// Lingers reports whether the process was left behind and is still there. A caller that starts another one then may
// have any number of them after a while.
func (p *Process) Lingers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lingered && !p.reaped
}

// End calls ask, which has the process end by itself, and kills it if that takes too long.
func (p *Process) End(ask func()) {
	timer := time.AfterFunc(endTime, func() { _ = p.Kill(context.Background()) })
	defer timer.Stop()
	ask()
}

// Stdout implements runner.Runner.
func (p *Process) Stdout() io.ReadCloser { return p.stdout }

// Stderr implements runner.Runner.
func (p *Process) Stderr() io.ReadCloser { return p.stderr }

// Name implements runner.Runner.
func (p *Process) Name() string { return p.cmd.Path }

// ID implements runner.Runner. It is empty until the process has started.
func (p *Process) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return ""
	}
	return strconv.Itoa(p.pid)
}

// Diagnose implements runner.Runner.
func (*Process) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both see the same sockets.
func (*Process) PluginToHost(network, address string) (hostNetwork, hostAddress string, err error) {
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (*Process) HostToPlugin(network, address string) (pluginNetwork, pluginAddress string, err error) {
	return network, address, nil
}
