package childprocess

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a child. The caller closes its Conn, which asks the child to end.
type Process struct {
	// Conn is the parent's end of the socket pair.
	Conn *net.UnixConn

	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts a child. It ends at the latest when this process does.
func (p *Program) Start() (*Process, error) {
	if !p.mayStart.Load() {
		return nil, fmt.Errorf("start %s: the program has not called Program.Run", p.Name)
	}
	conn, socket, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer socket.Close() // the child has its own
	child := &Process{Conn: conn, done: make(chan struct{}), cmd: &exec.Cmd{
		Path:   "/proc/self/exe", // also when the file was replaced by another version
		Args:   []string{p.Name},
		Env:    p.Env,
		Dir:    "/",
		Stdin:  socket,
		Stderr: os.Stderr,
		// It ends when the service does, even in the middle of a call. What it starts is in its process group. The session
		// is its own, since the service may have been started from a terminal.
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: serviceEnded, Setsid: true},
	}}
	if err := child.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.Name, err), conn.Close())
	}
	// This ends with the child: of one that was abandoned, when the kernel lets go of it.
	go func() {
		_ = child.cmd.Wait() // it was killed, or has said on stderr why it ended
		close(child.done)
	}()
	return child, nil
}

// PID is the child's process ID.
func (c *Process) PID() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Process) Done() <-chan struct{} { return c.done }

// Kill ends the child, and what it has started, as soon as the kernel lets them end. It waits for nothing.
func (c *Process) Kill() {
	select {
	case <-c.done: // its number may be another's by now
	default:
		_ = unix.Kill(-c.PID(), unix.SIGKILL) // it may have ended
	}
}

// socketPair returns the parent's end and the child's.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	own, socket := os.NewFile(uintptr(fds[0]), "parent"), os.NewFile(uintptr(fds[1]), "child")
	conn, err := net.FileConn(own) // has a descriptor of its own
	err = errors.Join(err, own.Close())
	if err != nil {
		return nil, nil, errors.Join(err, socket.Close())
	}
	return conn.(*net.UnixConn), socket, nil
}
