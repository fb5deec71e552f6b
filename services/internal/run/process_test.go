package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperEnv makes the test binary a process that waits for signals.
const helperEnv = "RUN_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		ctx := Signals(context.Background())
		fmt.Println("waiting")
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		if os.Getenv(helperEnv) == "stubborn" {
			select {}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(t *testing.T, mode string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+mode)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "waiting" {
		t.Fatalf("helper said %q", lines.Text())
	}
	return cmd, lines
}

func TestFirstSignalEndsTheContext(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd, lines := helper(t, "obedient")
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != "received signal "+s.String() {
			t.Errorf("after %v the cause was %q", s, lines.Text())
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %v: %v", s, err)
		}
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	cmd, lines := helper(t, "stubborn")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() {
		t.Fatal("helper did not hear the first signal")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("ended with %v, want exit status %d", err, 128+int(syscall.SIGINT))
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "10000000")
	t.Setenv("WATCHDOG_PID", "")
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	if n.Watchdog() != 10*time.Second {
		t.Errorf("watchdog is %v, want 10s", n.Watchdog())
	}
	if v, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
		t.Errorf("NOTIFY_SOCKET=%s is left for children", v)
	}
	if err := n.Notify(NotifyReady, NotifyStatus+"fine"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	got, err := conn.Read(buf)
	if err != nil || string(buf[:got]) != "READY=1\nSTATUS=fine" {
		t.Errorf("received %q, %v", buf[:got], err)
	}
	if err := n.Notify("STATUS=two\nlines"); err == nil {
		t.Error("a state with a line break was sent: it would be two states")
	}
}

func TestNotifyGivesUpOnAFullQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // it is not read
	n := &Notifier{address: path}
	for i := range 10_000 {
		began := time.Now()
		err := n.Notify(NotifyWatchdog)
		if took := time.Since(began); took > 10*notifyTimeout {
			t.Fatalf("notification %d took %v", i, took)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("the queue never filled")
}

func TestNotifierOfAnUnsupervisedProcess(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		t.Setenv(name, "")
	}
	n, err := NewNotifier()
	if err != nil || n.Watchdog() != 0 || n.Notify(NotifyReady) != nil {
		t.Errorf("a process without a supervisor has nothing to do: %+v, %v", n, err)
	}
	t.Setenv("NOTIFY_SOCKET", "/nowhere")
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := NewNotifier(); err == nil || !strings.Contains(err.Error(), `"soon"`) {
		t.Errorf("error is %v, want the bad value", err)
	}
	t.Setenv("NOTIFY_SOCKET", "/nowhere")
	t.Setenv("WATCHDOG_USEC", "1000000")
	t.Setenv("WATCHDOG_PID", "1")
	if n, err := NewNotifier(); err != nil || n.Watchdog() != 0 {
		t.Errorf("the watchdog of another process was taken: %v, %v", n, err)
	}
}
