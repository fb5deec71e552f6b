package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstDescriptor is where the supervisor's descriptors begin; see sd_listen_fds(3).
const firstDescriptor = 3

// Inheritance is what the supervisor has handed to this process.
type Inheritance struct {
	// Kept are the files that the supervisor kept for this service (FDSTORE=1 of sd_notify(3)), by their names.
	Kept map[string]*os.File
	// Listeners are the sockets that the supervisor listens on for this service, by their paths. They stay open when this
	// process ends, so closing one does not remove its file.
	Listeners map[string]net.Listener
}

// Inherited returns what the supervisor has handed over. It removes LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES from the
// environment, and lets no child inherit the files. It is to be called once, before this process opens files of its own
// in their place.
func Inherited() (Inheritance, error) {
	count, pid, names := os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return Inheritance{}, fmt.Errorf("unset %s: %w", name, err)
		}
	}
	// microlet's own supervisor does not know the process ID before the start, and leaves LISTEN_PID out.
	if count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return Inheritance{}, nil
	}
	n, err := strconv.Atoi(count)
	all := strings.Split(names, ":")
	if err != nil || n < 0 || n != len(all) {
		return Inheritance{}, fmt.Errorf("LISTEN_FDS is %q and LISTEN_FDNAMES %q: they must be a number, and as many names",
			count, names)
	}
	in := Inheritance{Kept: make(map[string]*os.File, n), Listeners: map[string]net.Listener{}}
	for i, name := range all {
		fd := firstDescriptor + i
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), name)
		if accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && accepts == 1 {
			if err := in.listen(f); err != nil {
				return Inheritance{}, fmt.Errorf("socket %s, which this process was given: %w", name, err)
			}
			continue
		}
		if earlier := in.Kept[name]; earlier != nil {
			_ = earlier.Close()
		}
		in.Kept[name] = f
	}
	return in, nil
}

// listen takes over a socket that is listened on. The file is closed.
func (in *Inheritance) listen(f *os.File) error {
	defer f.Close()
	// Who connects from now on sees this process at the other end, and not the one that opened the socket. The kernel
	// takes -1 for the longest queue that it allows.
	if err := unix.Listen(int(f.Fd()), -1); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	in.Listeners[l.Addr().String()] = l
	return nil
}

// CloseOnExec has no program that this process starts inherit what this process was started with, but its standard
// input, output and error. A shell or a program of root's may have left open what is not for services. What this
// process opens itself is closed on exec already.
func CloseOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list the own descriptors: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= firstDescriptor {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// Keep has the supervisor keep a copy of the file under a name, in place of an earlier one, so that it stays open when
// this process ends, and is given to the next one; see Inherited. A process without a supervisor keeps the file alone.
func (n *Notifier) Keep(name string, f *os.File) error {
	if n.address == "" {
		return nil
	}
	if err := n.Drop(name); err != nil {
		return err
	}
	return n.send([]byte("FDSTORE=1\nFDNAME="+name), f)
}

// Drop has the supervisor close what it keeps under a name.
func (n *Notifier) Drop(name string) error {
	return n.Notify("FDSTOREREMOVE=1", "FDNAME="+name)
}

// send sends the file with the datagram. The net package sends no files over a connected datagram socket.
func (n *Notifier) send(datagram []byte, f *os.File) error {
	fail := func(err error) error { return fmt.Errorf("notify %s: %w", n.address, err) }
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fail(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyTimeout)); err != nil {
		return fail(err)
	}
	socket, err := conn.SyscallConn()
	if err != nil {
		return fail(err)
	}
	file, err := f.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var fileErr, sendErr error
	err = socket.Write(func(to uintptr) bool {
		fileErr = file.Control(func(fd uintptr) {
			sendErr = unix.Sendmsg(int(to), datagram, unix.UnixRights(int(fd)), nil, 0)
		})
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err = errors.Join(err, fileErr, sendErr); err != nil {
		return fail(err)
	}
	return nil
}
