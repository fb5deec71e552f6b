package childprocess

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Program is something that this binary does as a child.
type Program struct {
	// Name is the child's first argument, by which it knows what to do, and by which an operator knows it.
	Name string
	// Env is the child's whole environment.
	Env []string
	// Main does the work, and reads from and writes to the socket. The parent has the other end. The child ends when it
	// returns.
	Main func(socket *os.File) error

	mayStart atomic.Bool
}

// Run is what a program calls before all else. If the process was started to be such a child, Run does the child's
// work, and returns true when the program is to end. Without this call no child is started: it would be another
// program of its kind.
func (p *Program) Run() bool {
	p.mayStart.Store(true)
	if len(os.Args) == 0 || os.Args[0] != p.Name {
		return false
	}
	err := p.work()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
	}
	endGroup()
	if err != nil {
		os.Exit(1)
	}
	return true
}

// endGroup kills this process and what it has started. A service that is killed closes the socket too, and the child
// may read that before it gets the signal.
func endGroup() {
	if unix.Getpgrp() == unix.Getpid() { // else the group is that of the process that started it by hand
		_ = unix.Kill(0, unix.SIGKILL)
	}
}

// ShortName is what the kernel keeps of the name, also of a child that was killed and does not end.
func (p *Program) ShortName() string { return p.Name[:min(len(p.Name), 15)] } // TASK_COMM_LEN

// serviceEnded is the signal that a child gets when its service ends.
const serviceEnded = unix.SIGTERM

func (p *Program) work() error {
	endWithService()
	_ = os.WriteFile("/proc/self/comm", []byte(p.ShortName()), 0) // the work can be done without the name
	if err := closeInherited(); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	return p.Main(os.Stdin)
}

// endWithService kills the child's process group when its service ends. A mount(8) that waits for a server would go on
// otherwise, and mount over what a later one has mounted.
func endWithService() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, serviceEnded)
	go func() { // ends with the process
		<-ended
		endGroup()
	}()
}

// KeepPrivate keeps processes of the same user from reading the memory of this one. From then on its files below /proc
// are root's.
func KeepPrivate() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep the process private: %w", err)
	}
	return nil
}

// closeInherited closes all descriptors but the first three that the process was started with. Those that the Go
// runtime has opened since then close on exec, which one that came through an exec cannot.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= unix.Stderr {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // the listing's own, which is closed, or the runtime's
		}
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
