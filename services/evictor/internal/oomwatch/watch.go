// Package oomwatch reports processes that the kernel killed because memory ran out.
//
// It reads /dev/kmsg, which takes CAP_SYSLOG. The library for that, go-kmsg-parser, ends at the first record that the
// kernel overwrites before it is read, which is when the log is full of an OOM kill.
package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	device = "/dev/kmsg"
	// maxRecord is the kernel's limit of one record.
	maxRecord = 8 << 10
	// before is how old a kill may be at the start: the kernel may have killed the watcher itself.
	before = 10 * time.Second
)

// Watcher reads the kernel's log.
type Watcher struct {
	// Killed is called with each kill.
	Killed func(Kill)
	Log    *slog.Logger
}

// Run watches until ctx ends. A node with a log that cannot be read is not watched. That is logged, and is no error.
func (w *Watcher) Run(ctx context.Context) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		w.Log.Warn("OOM kills are not reported", logkey.Err, err)
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() }) // ends the read
	defer stop()
	var uptime unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &uptime); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	err = w.read(f, time.Duration(uptime.Nano())-before)
	if ctx.Err() == nil {
		w.Log.Error("OOM kills are no longer reported", logkey.Err, err)
	}
	return nil
}

// read reads records, one each time, and leaves out what is older than since, by the clock of the kernel's log.
func (w *Watcher) read(from io.Reader, since time.Duration) error {
	var p parser
	buffer := make([]byte, maxRecord)
	for {
		n, err := from.Read(buffer)
		switch {
		case errors.Is(err, unix.EPIPE):
			continue // the kernel has overwritten records; the next read begins with the oldest
		case errors.Is(err, unix.EINVAL):
			continue // a record that is longer than any should be: it is skipped
		case err != nil:
			return err
		}
		at, line, ok := parseRecord(string(buffer[:n]))
		if !ok || at < since {
			continue
		}
		if kill, done := p.line(line); done {
			w.Killed(kill)
		}
	}
}

// Message is the kubelet's, of the event SystemOOM.
func (k Kill) Message() string {
	const text = "System OOM encountered"
	if k.Process == "" || k.PID == 0 {
		return text
	}
	return fmt.Sprintf("%s, victim process: %s, pid: %d", text, k.Process, k.PID)
}
