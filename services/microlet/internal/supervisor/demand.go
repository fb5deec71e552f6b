package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

// OnDemand says when the first process of a Spec is started. From then on it is kept as every other one.
type OnDemand struct {
	// Listen opens the sockets that the process is given (LISTEN_FDS of sd_listen_fds(3)). The supervisor has them open
	// until it ends, and removes them then. After an error it is called again.
	Listen func() ([]net.Listener, error)
	// Needed reports whether the process has something to do before anything connects. Nil: it has not.
	Needed func() bool
}

const (
	// socketName is how a socket is called in LISTEN_FDNAMES. The process knows its sockets by their addresses.
	socketName = "socket"
	// listenRetry is the time between two attempts to open the sockets.
	listenRetry = 5 * time.Second
)

// socket is one that the supervisor has open for a process.
type socket struct {
	file *os.File
	made os.FileInfo // what has the socket's name
}

// openSockets opens the sockets of a process.
func openSockets(listen func() ([]net.Listener, error)) ([]socket, error) {
	listeners, err := listen()
	if err != nil {
		return nil, err
	}
	var all []socket
	var errs []error
	for _, l := range listeners {
		s, err := hold(l)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %s: %w", l.Addr(), err))
			continue
		}
		all = append(all, s)
	}
	if len(errs) > 0 {
		closeSockets(all)
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// hold keeps a listener's socket open without the poller of Go, which would wake for each connection that is the
// process's.
func hold(l net.Listener) (socket, error) {
	defer l.Close()
	u, ok := l.(*net.UnixListener)
	if !ok {
		return socket{}, fmt.Errorf("a %T cannot be handed on", l)
	}
	made, err := os.Lstat(u.Addr().String())
	if err != nil {
		return socket{}, err
	}
	fd, err := duplicate(u)
	if err != nil {
		return socket{}, err
	}
	if err := unix.SetNonblock(fd, false); err != nil { // what blocks is not polled; the process sets it again
		return socket{}, errors.Join(err, unix.Close(fd))
	}
	u.SetUnlinkOnClose(false)
	return socket{file: os.NewFile(uintptr(fd), u.Addr().String()), made: made}, nil
}

// duplicate returns another descriptor of a listener's socket.
func duplicate(l *net.UnixListener) (fd int, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	var dupErr error
	err = raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, dupErr); err != nil {
		return -1, fmt.Errorf("duplicate the socket: %w", err)
	}
	return fd, nil
}

// closeSockets closes the sockets, and removes their files unless another server has replaced them.
func closeSockets(all []socket) {
	for _, s := range all {
		_ = s.file.Close()
		if now, err := os.Lstat(s.file.Name()); err == nil && os.SameFile(now, s.made) {
			_ = os.Remove(s.file.Name())
		}
	}
}

// awaitConnection waits until something connects to one of the sockets, and leaves the connection to the process. It
// returns false if stop was closed before.
func awaitConnection(all []socket, stop <-chan struct{}) (connected bool, err error) {
	found := make(chan error, len(all))
	var watched []*os.File
	defer func() {
		for _, f := range watched {
			_ = f.Close() // ends its goroutine
		}
		for range watched {
			<-found
		}
	}()
	for _, s := range all {
		fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return false, fmt.Errorf("watch %s: %w", s.file.Name(), err)
		}
		if err := unix.SetNonblock(fd, true); err != nil { // so that Go's poller takes it
			return false, errors.Join(err, unix.Close(fd))
		}
		f := os.NewFile(uintptr(fd), s.file.Name())
		watched = append(watched, f)
		go func() { found <- awaitReadable(f) }()
	}
	select {
	case err := <-found:
		found <- err // for the wait of all
		return err == nil, err
	case <-stop:
		return false, nil
	}
}

// awaitReadable waits until a socket has a connection, or is closed.
func awaitReadable(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			pollErr = err
			return true
		}
		return n > 0
	})
	return errors.Join(err, pollErr)
}

// inherit lets a command inherit the sockets and what was kept for the process, as sd_listen_fds(3) describes it.
// LISTEN_PID is left out: it is not known yet.
func inherit(cmd *exec.Cmd, sockets []socket, kept *keptFiles) {
	files, names := kept.all()
	for _, s := range sockets {
		files, names = append(files, s.file), append(names, socketName)
	}
	if len(files) == 0 {
		return
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, files...)
	cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
}

// await opens the sockets of a process that runs on demand, and waits until it is needed. It returns false if the
// supervisor stops before.
func (k *keeper) await() bool {
	d := k.spec.OnDemand
	if d == nil {
		return true
	}
	if !k.listen(d) {
		return false
	}
	if d.Needed != nil && d.Needed() {
		k.log.Info("process is started: it has something to do since before")
		return true
	}
	k.update(func(p *Process) { p.State, p.LastExit = Idle, "" })
	idle := k.metrics.idle.WithLabelValues(k.spec.services()[0])
	idle.Set(1)
	defer idle.Set(0)
	k.settle()
	connected, err := awaitConnection(k.spec.sockets, k.stopping)
	switch {
	case err != nil:
		k.log.Error("sockets cannot be watched; the process is started without a need for it", logkey.Err, err)
	case !connected:
		return false
	default:
		k.log.Info("process is started: something has connected to it")
	}
	return true
}

// listen opens the sockets, and tries again until that succeeds. It returns false if the supervisor stops before.
func (k *keeper) listen(d *OnDemand) bool {
	for logged := ""; ; {
		sockets, err := openSockets(d.Listen)
		if err == nil {
			k.spec.sockets = sockets
			return true
		}
		if logged != err.Error() {
			logged = err.Error()
			k.log.Error("sockets not opened; the next attempts follow", logkey.Err, err, "every", listenRetry)
		}
		k.update(func(p *Process) { p.State, p.LastExit = Backoff, err.Error() })
		k.settle() // the start of the others does not wait for it
		select {
		case <-time.After(listenRetry):
		case <-k.again:
		case <-k.stopping:
			return false
		}
	}
}

// settle ends the wait for the process at the start: it is ready, or not needed.
func (k *keeper) settle() {
	closeOnce(k.begun)
	closeOnce(k.firstReady)
}

// closeOnce closes a channel that one goroutine may close several times.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
