package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Config says what to run and how.
type Config struct {
	Command  []string      // the program and its arguments
	Status   string        // the status file
	Notify   string        // the path of the notification socket; at most 107 bytes
	Watchdog time.Duration // kill the program when its messages stop for this long; 0: never
	Grace    time.Duration // between SIGTERM and SIGKILL at the end
	Bind     Bind          // optional
	Log      *slog.Logger
}

// Status is the content of the status file.
type Status struct {
	PID       int       `json:"pid"`       // of the program; 0 between two lives
	Ready     bool      `json:"ready"`     // it has sent READY=1 in this life
	Starts    int       `json:"starts"`    // how often it was started
	StartedAt time.Time `json:"startedAt"` // this life's begin
	LastExit  string    `json:"lastExit"`  // how the life before ended; empty in the first
}

// Pauses between an end and the next start: none the first time, then from
// least to most, and none again after a life of at least calm.
const (
	least = 100 * time.Millisecond
	most  = time.Second
	calm  = 2 * time.Second
)

// backoff returns the pause before the next start.
func backoff(failures int) time.Duration {
	if failures <= 1 {
		return 0
	}
	pause := least << min(failures-2, 10)
	return min(pause, most)
}

// Run starts the program again and again until the context is done.
func Run(ctx context.Context, c Config) error {
	if len(c.Command) == 0 {
		return errors.New("supervise: no command given")
	}
	if err := os.Remove(c.Notify); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("supervise: %w", err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: c.Notify, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("supervise: listen for notifications: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// A supervised program may leave root behind before it sends.
	if err := os.Chmod(c.Notify, 0o666); err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	messages := make(chan string)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		read(ctx, conn, messages)
	}()
	defer func() {
		_ = conn.Close()
		<-reading
	}()

	var status Status
	failures := 0
	for {
		status.Starts++
		began := time.Now()
		exit, err := c.life(ctx, &status, messages)
		if ctx.Err() != nil {
			status.PID, status.Ready = 0, false
			return c.write(status)
		}
		if err != nil {
			c.Log.Error("cannot start the program", "err", err)
			exit = err.Error()
		}
		lived := time.Since(began)
		if lived >= calm {
			failures = 0
		}
		failures++
		pause := backoff(failures)
		c.Log.Warn("the program has ended, starting it again", "exit", exit,
			"lived", lived.Round(time.Millisecond).String(), "pause", pause.String())
		status.PID, status.Ready, status.LastExit = 0, false, exit
		if err := c.write(status); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// life runs the program once and returns how it ended.
func (c Config) life(ctx context.Context, status *Status, messages <-chan string) (string, error) {
	cmd := c.command()
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+c.Notify)
	if c.Watchdog > 0 {
		cmd.Env = append(cmd.Env, "WATCHDOG_USEC="+strconv.FormatInt(c.Watchdog.Microseconds(), 10))
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	status.PID, status.Ready, status.StartedAt = cmd.Process.Pid, false, time.Now()
	if err := c.write(*status); err != nil {
		_ = cmd.Process.Kill()
		<-ended
		return "", err
	}
	c.Log.Info("program started", "pid", status.PID, "starts", status.Starts)

	// The watchdog runs from the program's first message on: a program that
	// does not know the protocol is not killed for that.
	watchdog := time.NewTimer(0)
	watchdog.Stop()
	defer watchdog.Stop()
	stopping := false
	var grace <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case err := <-ended:
			if err == nil {
				return "exit status 0", nil
			}
			return err.Error(), nil
		case <-done:
			done, stopping = nil, true
			watchdog.Stop()
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Process.Signal(syscall.SIGCONT) // a stopped one can't follow
			grace = time.After(c.Grace)
		case <-grace:
			c.Log.Warn("the program did not end in time, killing it", "grace", c.Grace.String())
			_ = cmd.Process.Kill()
		case <-watchdog.C:
			c.Log.Warn("the program's watchdog messages stopped, killing it", "pid", status.PID,
				"watchdog", c.Watchdog.String())
			_ = cmd.Process.Kill()
		case message := <-messages:
			for line := range strings.Lines(message) {
				switch strings.TrimSpace(line) {
				case "READY=1":
					if !status.Ready {
						status.Ready = true
						c.Log.Info("program is ready", "pid", status.PID,
							"after", time.Since(status.StartedAt).Round(time.Millisecond).String())
						if err := c.write(*status); err != nil {
							c.Log.Error("cannot write the status file", "err", err)
						}
					}
				case "WATCHDOG=1":
					if c.Watchdog > 0 && !stopping {
						watchdog.Reset(c.Watchdog)
					}
				case "STOPPING=1":
					watchdog.Stop()
				}
			}
		}
	}
}

// read passes notifications on until the connection is closed.
func read(ctx context.Context, conn *net.UnixConn, messages chan<- string) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		select {
		case messages <- string(buf[:n]):
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
			// Between two lives nothing receives it, and it has no use then.
		}
	}
}

// write replaces the status file in one step, so that a reader never sees half
// of it.
func (c Config) write(status Status) error {
	text, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	half := c.Status + ".half"
	if err := os.WriteFile(half, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	if err := os.Rename(half, c.Status); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// ReadStatus reads a status file.
func ReadStatus(path string) (Status, error) {
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return Status{}, fmt.Errorf("read status of the agent: %w", err)
	}
	var s Status
	if err := json.Unmarshal(text, &s); err != nil {
		return Status{}, fmt.Errorf("read status of the agent: %s: %w", path, err)
	}
	return s, nil
}
