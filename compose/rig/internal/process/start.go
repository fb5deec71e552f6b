package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec says how a program is started.
type Spec struct {
	Name    string   // what the rig calls it; also in errors
	Path    string   // the executable
	Args    []string // without the program's own name
	Env     []string // added to the caller's environment
	Dir     string   // working directory; empty: /
	Log     string   // stdout and stderr are appended here
	Cgroups []string // cgroup.procs files that the process enters before it runs
	// PIDNamespace gives the program a PID namespace of its own. The program is the first process there, so all that it
	// starts ends with it.
	PIDNamespace bool
	// Pdeathsig has the kernel kill the program when the thread that called Start ends, and so with the caller at the
	// latest, however that ends. The caller keeps the thread for as long as the program shall live.
	Pdeathsig bool
}

// enter puts the shell that runs it into the cgroups and then becomes the
// program. It is how a process is in its cgroups before it can start children,
// in cgroup v1 too, where clone3 can't do that.
const enter = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n-1)); done; exec "$@"`

// firstInherited is the descriptor after standard error.
const firstInherited = 3

// Start starts the program and returns as soon as it exists; whether it works
// is for Await to say. The program outlives the caller. While the caller
// lives it collects the program's exit.
func Start(spec Spec) (Record, error) {
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return Record{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Record{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()

	args := []string{"-c", enter, "sh", fmt.Sprint(len(spec.Cgroups))}
	args = append(args, spec.Cgroups...)
	args = append(args, spec.Path)
	args = append(args, spec.Args...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = spec.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Stdout, cmd.Stderr = log, log
	// It outlives the caller, and must not hold what the caller was started with, such as a lock.
	if err := unix.CloseRange(firstInherited, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return Record{}, fmt.Errorf("start %s: close descriptors on exec: %w", spec.Name, err)
	}
	// A session of its own: a Ctrl-C in the caller's terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if spec.PIDNamespace {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	}
	if spec.Pdeathsig {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return Record{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	record, err := Find(spec.Name, cmd.Process.Pid)
	// No caller waits for this goroutine. It ends with the program, which may outlive the caller, and only keeps the
	// program from staying a zombie.
	go func() { _ = cmd.Wait() }()
	if err != nil {
		return Record{}, fmt.Errorf("start %s: it ended at once: %s", spec.Name, Tail(spec.Log, 5))
	}
	return record, nil
}

// Await calls check until it succeeds. It fails as soon as the process has
// ended, with the end of its log, or when the context is done, with the last
// failure of check.
func Await(ctx context.Context, record Record, log string, check func(context.Context) error) error {
	const pause = 50 * time.Millisecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := errors.New("not checked yet")
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last check: %w); the end of %s:\n%s", record.Name, ctx.Err(), last,
				log, Tail(log, 8))
		case <-timer.C:
		}
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := check(attempt)
		cancel()
		if err == nil {
			return nil
		}
		last = err
		if !record.Alive() {
			return fmt.Errorf("%s has ended before it was ready; the end of %s:\n%s", record.Name, log, Tail(log, 8))
		}
		timer.Reset(pause)
	}
}

// Tail returns the last lines of a log file, or why it can't be read.
func Tail(path string, lines int) string {
	const most = 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
