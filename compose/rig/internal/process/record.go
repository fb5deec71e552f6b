package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone says that the recorded process is no longer there.
var ErrGone = errors.New("process is gone")

// Record names one process of this boot.
type Record struct {
	Name      string `json:"name"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot, from /proc/<pid>/stat
}

// Find makes the record of a live process.
func Find(name string, pid int) (Record, error) {
	stat, err := ReadStat(pid)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrGone
		}
		return Record{}, fmt.Errorf("find %s with pid %d: %w", name, pid, err)
	}
	return Record{Name: name, PID: pid, StartTime: stat.StartTime}, nil
}

// Alive reports whether the process still runs.
func (r Record) Alive() bool {
	if r.PID <= 0 {
		return false
	}
	stat, err := ReadStat(r.PID)
	return err == nil && stat.StartTime == r.StartTime && !stat.Dead()
}

// pidfd opens a descriptor that stays with the process. The record is
// compared after the descriptor is open: from then on the pid can't be reused
// without the descriptor noticing.
func (r Record) pidfd() (int, error) {
	if r.PID <= 0 {
		return -1, ErrGone
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open pidfd of %s (pid %d): %w", r.Name, r.PID, err)
	}
	if !r.Alive() {
		_ = unix.Close(fd)
		return -1, ErrGone
	}
	return fd, nil
}

// Signal sends sig to the process; ErrGone if it has ended.
func (r Record) Signal(sig unix.Signal) error {
	fd, err := r.pidfd()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
		return ErrGone
	} else if err != nil {
		return fmt.Errorf("send %v to %s (pid %d): %w", sig, r.Name, r.PID, err)
	}
	return nil
}

// Wait returns when the process has ended, or with the context's error.
func (r Record) Wait(ctx context.Context) error {
	fd, err := r.pidfd()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	const slice = 20 * time.Millisecond // how late a cancelled context is seen
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for the end of %s (pid %d): %w", r.Name, r.PID, err)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(slice.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of %s (pid %d): %w", r.Name, r.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// Stop sends SIGTERM, gives the process the grace period, sends SIGKILL and
// waits until it is gone. A stopped process (SIGSTOP) is continued, so that it
// can follow.
func (r Record) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGCONT} {
			if err := r.Signal(sig); errors.Is(err, ErrGone) {
				return nil
			} else if err != nil {
				return err
			}
		}
		patience, cancel := context.WithTimeout(ctx, grace)
		err := r.Wait(patience)
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return err
		}
	}
	if err := r.Signal(unix.SIGKILL); errors.Is(err, ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	// The kernel ends it by itself now; a caller needs to know that, even if its context is done.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return r.Wait(last)
}
