package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
)

// answer has a child answer on the sockets that it was given, with its process ID.
func answer(ctx context.Context, n *run.Notifier) error {
	in, err := run.Inherited()
	if err != nil {
		return err
	}
	for _, l := range in.Listeners {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, os.Getpid())
				_ = c.Close()
			}
		}()
	}
	if err := n.Notify(run.NotifyReady, run.NotifyStatus+strconv.Itoa(len(in.Listeners))); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// listenAt returns a Listen for sockets at the paths.
func listenAt(paths ...string) func() ([]net.Listener, error) {
	return func() ([]net.Listener, error) {
		var all []net.Listener
		for _, path := range paths {
			l, err := net.Listen("unix", path)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
		return all, nil
	}
}

// ask connects to a socket, and returns what is said there and whom the kernel names as the server.
func ask(t *testing.T, path string) (said string, server int) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			server = int(cred.Pid)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text), server
}

func TestAProcessIsStartedByTheFirstConnection(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	var ready atomic.Bool
	s, _, _ := supervise(t, Spec{
		Name: "process", KeptFiles: 1, OnDemand: &OnDemand{Listen: listenAt(first, second)},
	}, "answer", Options{OnReady: func(string) { ready.Store(true) }})
	until(t, "the wait for a connection", func() bool { return state(s).State == Idle && ready.Load() })
	if p := state(s); p.PID != 0 || !p.Started.IsZero() {
		t.Errorf("nothing needs it, and it is %+v", p)
	}
	if err := s.Restart("process"); err == nil || !strings.Contains(err.Error(), "starts when something needs it") {
		t.Errorf("restart of what does not run: %v", err)
	}

	said, _ := ask(t, second)
	until(t, "ready", func() bool { return state(s).State == Ready })
	if p := state(s); said != strconv.Itoa(p.PID) || p.Status != "2" || p.Restarts != 0 {
		t.Errorf("the connection that was there before got %q from %+v", said, p)
	}
	if _, server := ask(t, first); server != state(s).PID {
		t.Errorf("the kernel names %d as the server, want the process %d", server, state(s).PID)
	}

	// From now on it is kept as any other, and no connection fails meanwhile.
	before := state(s).PID
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "an answer of the successor", func() bool {
		said, _ := ask(t, first)
		return said != "" && said != strconv.Itoa(before)
	})
	until(t, "the restart", func() bool { return state(s).State == Ready && state(s).Restarts == 1 })
}

func TestAProcessThatHasSomethingToDoIsStartedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	s, _, _ := supervise(t, Spec{Name: "process", OnDemand: &OnDemand{
		Listen: listenAt(path), Needed: func() bool { return true },
	}}, "answer", Options{})
	until(t, "ready", func() bool { return state(s).State == Ready })
	if said, _ := ask(t, path); said != strconv.Itoa(state(s).PID) {
		t.Errorf("the process says %q", said)
	}
}

// What keeps the sockets from being opened keeps neither the other processes nor the supervisor.
func TestSocketsThatCannotBeOpenedAreTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	var ready atomic.Bool
	s, _, _ := supervise(t, Spec{Name: "process", OnDemand: &OnDemand{Listen: listenAt(filepath.Join(dir, "socket"))}},
		"answer", Options{OnReady: func(string) { ready.Store(true) }})
	until(t, "the start of the others", ready.Load)
	until(t, "the failure", func() bool {
		return state(s).State == Backoff && strings.Contains(state(s).LastExit, "no such file")
	})
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart("process"); err != nil { // an operator need not wait for the next attempt
		t.Fatal(err)
	}
	until(t, "the wait for a connection", func() bool { return state(s).State == Idle })
}

func TestTheEndRemovesTheSockets(t *testing.T) {
	dir := t.TempDir()
	own, replaced := filepath.Join(dir, "own"), filepath.Join(dir, "replaced")
	sockets, err := openSockets(listenAt(own, replaced))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(replaced); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", replaced)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	closeSockets(sockets)
	if _, err := os.Lstat(own); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	if _, err := os.Lstat(replaced); err != nil {
		t.Errorf("the socket of another server: %v", err)
	}
}

func TestTheWaitForAConnectionEndsWithTheSupervisor(t *testing.T) {
	sockets, err := openSockets(listenAt(filepath.Join(t.TempDir(), "socket")))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSockets(sockets)
	stop := make(chan struct{})
	close(stop)
	if connected, err := awaitConnection(sockets, stop); connected || err != nil {
		t.Errorf("connected is %t: %v", connected, err)
	}
}
