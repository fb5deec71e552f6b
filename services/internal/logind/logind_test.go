package logind

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/logindtest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const limit = 30 * time.Second

func connected(t *testing.T) *Conn {
	t.Helper()
	c, err := Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAnInhibitorHoldsUntilItsLastDescriptorIsClosed(t *testing.T) {
	l := logindtest.Start(t)
	c := connected(t)
	f, err := c.Inhibit(t.Context(), "who", "why")
	if err != nil {
		t.Fatal(err)
	}
	l.Begin(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // longer than the fake keeps its own copy
	if n := l.Inhibitors(); n != 1 {
		t.Fatalf("%d inhibitors are held after the end of the connection, want 1", n)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, limit, "the inhibitor is released", func() bool { return l.Inhibitors() == 0 })
}

func TestNoInhibitorWhileAShutdownIsUnderWay(t *testing.T) {
	l := logindtest.Start(t)
	c := connected(t)
	l.Begin(t)
	if begins, err := c.Next(t.Context()); err != nil || !begins {
		t.Errorf("Next: %t, %v", begins, err)
	}
	if _, err := c.Inhibit(t.Context(), "who", "why"); !errors.Is(err, ErrInProgress) {
		t.Errorf("Inhibit during a shutdown: %v, want %v", err, ErrInProgress)
	}
	l.Cancel(t)
	if begins, err := c.Next(t.Context()); err != nil || begins {
		t.Errorf("Next: %t, %v", begins, err)
	}
}

// Any process may send a signal to a connection if it knows the connection's name.
func TestAForgedSignalIsNotBelieved(t *testing.T) {
	l := logindtest.Start(t)
	c := connected(t)
	say(t, l, c, true)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if begins, err := c.Next(ctx); err != nil || begins {
		t.Errorf("Next after a forged signal: %t, %v, want false", begins, err)
	}
}

// say sends a signal like logind's to one connection.
func say(t *testing.T, l *logindtest.Logind, to *Conn, begins bool) {
	t.Helper()
	sender, err := dbus.Connect(l.Address())
	if err != nil {
		t.Fatal(err)
	}
	sender.Send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(path), dbus.FieldInterface: dbus.MakeVariant(manager),
		dbus.FieldMember: dbus.MakeVariant(signal), dbus.FieldDestination: dbus.MakeVariant(to.bus.Names()[0]),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(begins)),
	}, Body: []any{begins}}, nil)
	// It is gone before its identity can be checked.
	if err := sender.Close(); err != nil {
		t.Fatal(err)
	}
}

// As upstream's specs of a graceful shutdown do.
func TestRootIsBelievedWhereOnlyRootMaySend(t *testing.T) {
	const policy = "../../../deploy/dbus/microlet.conf"
	l := logindtest.Start(t, policy)
	c, err := connect(t.Context(), []string{filepath.Join(t.TempDir(), "none"), policy})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	expect := func(want bool, when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if begins, err := c.Next(ctx); err != nil || begins != want {
			t.Errorf("Next after %s: %t, %v, want %t", when, begins, err, want)
		}
	}
	say(t, l, c, true)
	expect(true, "root's word")
	say(t, l, c, false)
	expect(false, "root's word")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// The thread ends with this goroutine, and its user with it.
		runtime.LockOSThread()
		const stranger = 65534
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); err != 0 {
			t.Error(err)
			return
		}
		say(t, l, c, true)
	}()
	<-sent
	// logind's own signal comes after the one that the bus has refused.
	l.Begin(t)
	l.Cancel(t)
	expect(true, "logind's word")
	expect(false, "logind's word")
}

func TestTheDelayIsReadAgainAfterAReload(t *testing.T) {
	l := logindtest.Start(t)
	c := connected(t)
	if d, err := c.MaxDelay(t.Context()); err != nil || d != logindtest.DefaultDelay {
		t.Errorf("MaxDelay: %v, %v", d, err)
	}
	if err := os.MkdirAll(filepath.Dir(l.Conf), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Conf, []byte("[Login]\nInhibitDelayMaxSec=42\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := c.MaxDelay(t.Context()); err != nil || d != 42*time.Second {
		t.Errorf("MaxDelay after the reload: %v, %v", d, err)
	}
}

func TestWatchBeginsWithWhatIs(t *testing.T) {
	l := logindtest.Start(t)
	l.Begin(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	states, ended := make(chan bool, 8), make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, slog.New(slog.NewTextHandler(io.Discard, nil)), func(s bool) { states <- s })
	}()
	if !<-states {
		t.Error("the first state is not that of logind")
	}
	l.Cancel(t)
	if <-states {
		t.Error("the end of the shutdown was not seen")
	}
	cancel()
	<-ended
}

func TestNoBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	if _, err := Connect(t.Context()); err == nil {
		t.Error("connected to nothing")
	}
}
