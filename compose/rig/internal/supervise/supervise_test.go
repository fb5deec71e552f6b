package supervise

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the program that it supervises, and rig-agent.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "--"+insideFlag) {
		os.Exit(Main(os.Args[1:], os.Stderr))
	}
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
	case "looks": // says what a folder contains
		entries, err := os.ReadDir(os.Getenv("SUPERVISED_FOLDER"))
		if err != nil {
			panic(err)
		}
		for _, e := range entries {
			send("READY=1\n" + e.Name())
			_ = os.WriteFile(filepath.Join(os.Getenv("SUPERVISED_FOLDER"), "seen-"+e.Name()), nil, 0o600)
		}
	case "silent": // speaks the protocol, and then hangs
		send("READY=1")
		send("WATCHDOG=1")
	}
	select {}
}

func run(t *testing.T, mode string, watchdog time.Duration) (status func() Status) {
	t.Helper()
	return runBound(t, mode, watchdog, Bind{})
}

func runBound(t *testing.T, mode string, watchdog time.Duration, bind Bind) (status func() Status) {
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
		Bind: bind,
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

// TestProgramsSeeFoldersOfTheirOwn: two programs that look at the same path see different folders there, and others see
// what is there.
func TestProgramsSeeFoldersOfTheirOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as mounts do")
	}
	top := t.TempDir()
	place, link := filepath.Join(top, "place"), filepath.Join(top, "link")
	if err := os.Symlink(place, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"place", "a", "b"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, dir, "of-"+dir), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SUPERVISED_FOLDER", place)
	for _, own := range []string{"a", "b"} {
		status := runBound(t, "looks", 0, Bind{filepath.Join(top, own), link})
		await(t, "the program", status, func(s Status) bool { return s.Ready })
	}
	for dir, want := range map[string]bool{"place": false, "a": true, "b": true} {
		deadline := time.Now().Add(20 * time.Second)
		for {
			_, err := os.Stat(filepath.Join(top, dir, "seen-of-"+dir))
			if (err == nil) == want {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("folder %s was seen: %t, want %t", dir, err == nil, want)
				break
			}
			time.Sleep(5 * time.Millisecond) // a real process, so real time
		}
	}
}

func TestMountAround(t *testing.T) {
	const list = `22 1 254:0 / / rw shared:1 - ext4 /dev/root rw
23 22 0:5 / /a rw - tmpfs none rw
24 23 0:6 / /a/with\040space rw master:2 - tmpfs none rw
`
	for path, want := range map[string]string{
		"/x": "/", "/a": "/a", "/a/b": "/a", "/ab": "/", "/a/with space/c": "/a/with space",
	} {
		if got, err := mountAround(list, path); err != nil || got != want {
			t.Errorf("mountAround(%q) = %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := mountAround("", "/x"); err == nil {
		t.Error("a mount is found in an empty list")
	}
}

func TestParseBind(t *testing.T) {
	if b, err := ParseBind("/a:/b"); err != nil || b.String() != "/a:/b" || b.From != "/a" {
		t.Errorf("%+v, %v", b, err)
	}
	for _, text := range []string{"", "/a", "a:/b", "/a:b"} {
		if _, err := ParseBind(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
