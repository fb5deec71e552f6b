package supervise

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the program that it supervises.
func TestMain(m *testing.M) {
	if mode := os.Getenv("SUPERVISED_MODE"); mode != "" {
		os.Exit(supervised(mode))
	}
	os.Exit(m.Run())
}

func supervised(mode string) int {
	send := func(text string) {
		conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err != nil {
			panic(err)
		}
		_, _ = conn.Write([]byte(text))
		_ = conn.Close()
	}
	switch mode {
	case "ready":
		send("READY=1\nSTATUS=fine")
	case "silent": // speaks the protocol, and then hangs
		send("READY=1")
		send("WATCHDOG=1")
	}
	select {}
}

func run(t *testing.T, mode string, watchdog time.Duration) (status func() Status) {
	t.Helper()
	t.Setenv("SUPERVISED_MODE", mode)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := Config{
		Command: []string{self}, Status: filepath.Join(dir, "status"), Notify: filepath.Join(dir, "n"),
		Watchdog: watchdog, Grace: time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if s, err := ReadStatus(c.Status); err != nil || s.PID != 0 {
			t.Errorf("the status after the end: %+v, %v: want no pid", s, err)
		}
	})
	return func() Status {
		s, err := ReadStatus(c.Status)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return s
	}
}

func await(t *testing.T, what string, status func() Status, ok func(Status) bool) Status {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if s := status(); ok(s) {
			return s
		}
		time.Sleep(5 * time.Millisecond) // a real process, so real time
	}
	t.Fatalf("waited in vain for: %s; status: %+v", what, status())
	return Status{}
}

func TestKilledProgramIsBack(t *testing.T) {
	status := run(t, "ready", 0)
	first := await(t, "ready", status, func(s Status) bool { return s.Ready })
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := await(t, "the second life", status, func(s Status) bool { return s.Ready && s.PID != first.PID })
	if second.Starts != 2 || second.LastExit != "signal: killed" {
		t.Errorf("status %+v, want a second start after signal: killed", second)
	}
}

func TestWatchdogKillsAProgramThatHangs(t *testing.T) {
	status := run(t, "silent", 50*time.Millisecond)
	await(t, "a restart", status, func(s Status) bool { return s.Starts >= 2 && s.LastExit == "signal: killed" })
}

func TestBackoff(t *testing.T) {
	for failures, want := range []time.Duration{0, 0, least, 2 * least, 4 * least, 8 * least, most, most} {
		if got := backoff(failures); got != want {
			t.Errorf("backoff(%d) = %v, want %v", failures, got, want)
		}
	}
	if got := backoff(1 << 20); got != most {
		t.Errorf("backoff of very many = %v, want %v", got, most)
	}
}

func TestMainRefusesAnIncompleteCommandLine(t *testing.T) {
	for _, args := range [][]string{nil, {"--status", "x"}, {"--status", "x", "--notify", "y"}, {"--nonsense"}} {
		if got := Main(args, io.Discard); got != 2 {
			t.Errorf("Main(%q) = %d, want 2", args, got)
		}
	}
}
