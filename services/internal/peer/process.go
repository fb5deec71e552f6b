package peer

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// holder reads the cgroups of a connection's peer, and is certain that they are the peer's.
type holder func(conn *net.UnixConn, cred *unix.Ucred) (cgroups, error)

// holdByConnection has the kernel hold the peer if it can.
func holdByConnection(conn *net.UnixConn, cred *unix.Ucred) (cgroups, error) {
	theirs, err := holdByPidfd(conn, cred)
	if errors.Is(err, errNoPidfd) {
		return holdByStart(conn, cred)
	}
	return theirs, err
}

// errNoPidfd says that the kernel is older than 6.5.
var errNoPidfd = errors.New("the kernel gives no pidfd of a peer")

// holdByPidfd reads while a pidfd holds the peer: no other process has its number as long as it has not ended.
func holdByPidfd(conn *net.UnixConn, cred *unix.Ucred) (cgroups, error) {
	fd, err := getsockopt(conn,
		func(s int) (int, error) { return unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return nil, errNoPidfd
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA):
		return nil, errEnded // how a kernel says it depends on its version
	case err != nil:
		return nil, fmt.Errorf("pidfd of the peer: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	theirs, _, err := readAlive(cred)
	if err != nil {
		return nil, err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		switch n, err := unix.Poll(poll, 0); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("poll the peer's pidfd: %w", err)
		case n > 0:
			return nil, errEnded
		default:
			return theirs, nil
		}
	}
}

// holdByStart reads what the number belongs to, which must be the peer: its user has to be the peer's, and it has
// to have started before now and to be the same process after the reading.
func holdByStart(_ *net.UnixConn, cred *unix.Ucred) (cgroups, error) {
	now, err := sinceBoot()
	if err != nil {
		return nil, err
	}
	if err := visible(cred); err != nil {
		return nil, err
	}
	uid, err := effectiveUID(cred)
	if err != nil {
		return nil, err
	}
	if uid != cred.Uid {
		return nil, fmt.Errorf("%w: its process id is that of one with uid %d", errEnded, uid)
	}
	theirs, start, err := readAlive(cred)
	if err != nil {
		return nil, err
	}
	if start > now {
		return nil, fmt.Errorf("%w: its process id is that of a newer one", errEnded)
	}
	return theirs, nil
}

// readAlive reads the cgroups of the process that the number belongs to, and its start, while it is the same one and
// its main thread lives: /proc shows the cgroups of that thread, which is in the root of each hierarchy of cgroup v1
// once it exits, also while others of the process live on. Another thread's execve makes that one the main thread, with
// the same number and start, so the cgroups are read again: they are not those of a thread that exited between the
// first two looks.
func readAlive(cred *unix.Ucred) (cgroups, uint64, error) {
	start, err := startOf(cred)
	if err != nil {
		return nil, 0, err
	}
	var theirs cgroups
	for range 2 {
		now, err := readOther(cred)
		if err != nil {
			return nil, 0, err
		}
		again, err := startOf(cred)
		switch {
		case err != nil:
			return nil, 0, err
		case again != start:
			return nil, 0, fmt.Errorf("%w: its process id is that of a newer one", errEnded)
		case theirs != nil && !theirs.equal(now):
			return nil, 0, errors.New("the process changed its cgroup while it was read")
		}
		theirs = now
	}
	return theirs, start, nil
}

// readOther reads the cgroups of the process that the number belongs to.
func readOther(cred *unix.Ucred) (cgroups, error) {
	theirs, err := readCgroups(strconv.Itoa(int(cred.Pid)))
	return theirs, explain(err)
}

// visible refuses a peer that has no number here.
func visible(cred *unix.Ucred) error {
	if cred.Pid <= 0 {
		return errors.New(
			"the process is in a PID namespace that cannot be seen from here; a helper pod needs hostPID: true",
		)
	}
	return nil
}

// explain says what a missing file of a process means.
func explain(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w, or /proc hides it (hidepid): %w", errEnded, err)
	}
	return err
}

// userHZ is the unit of a start time, the same on every architecture that Go has.
const userHZ = 100

// exiting is the kernel's PF_EXITING, which a thread has from the beginning of its exit.
const exiting = 0x4

// startOf is when the process started, in ticks since the boot. It refuses the peer if its main thread exits or has
// exited.
func startOf(cred *unix.Ucred) (uint64, error) {
	if err := visible(cred); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cred.Pid))
	if err != nil {
		return 0, explain(err)
	}
	// The second field is the program's name in brackets, which may hold anything; the start is the 22nd.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	const start, flags, state = 22 - 3, 9 - 3, 0
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", cred.Pid, len(fields))
	}
	bits, err := strconv.ParseUint(fields[flags], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: flags: %w", cred.Pid, err)
	}
	if fields[state] == "Z" || fields[state] == "X" || bits&exiting != 0 {
		return 0, fmt.Errorf("%w, or its main thread has", errEnded)
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: start time: %w", cred.Pid, err)
	}
	return ticks, nil
}

// sinceBoot is now in the same ticks, rounded up.
func sinceBoot() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("time since the boot: %w", err)
	}
	return uint64(math.Ceil(time.Duration(now.Nano()).Seconds() * userHZ)), nil
}

// effectiveUID is the user that the process has now.
func effectiveUID(cred *unix.Ucred) (uint32, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cred.Pid))
	if err != nil {
		return 0, explain(err)
	}
	for line := range strings.Lines(string(data)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(ids); len(f) == 4 {
				uid, err := strconv.ParseUint(f[1], 10, 32)
				if err != nil {
					return 0, fmt.Errorf("/proc/%d/status: effective user: %w", cred.Pid, err)
				}
				return uint32(uid), nil
			}
		}
	}
	return 0, fmt.Errorf("/proc/%d/status names no user", cred.Pid)
}

// credentials asks the kernel who opened the other end.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	cred, err := getsockopt(conn,
		func(s int) (*unix.Ucred, error) { return unix.GetsockoptUcred(s, unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	return cred, nil
}

func getsockopt[T any](conn *net.UnixConn, get func(fd int) (T, error)) (T, error) {
	var value T
	raw, err := conn.SyscallConn()
	if err != nil {
		return value, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { value, failed = get(int(fd)) }); err != nil {
		return value, err
	}
	return value, failed
}
