package logind

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/microlet/microlet/services/internal/testing/logindtest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const limit = 30 * time.Second

func connect(t *testing.T) *Conn {
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
	c := connect(t)
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
	c := connect(t)
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

// Any process may send a signal to a connection whose name it knows.
func TestAForgedSignalIsNotBelieved(t *testing.T) {
	l := logindtest.Start(t)
	c := connect(t)
	forger, err := dbus.Connect(l.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = forger.Close() }()
	m := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(path), dbus.FieldInterface: dbus.MakeVariant(manager),
		dbus.FieldMember: dbus.MakeVariant(signal), dbus.FieldDestination: dbus.MakeVariant(c.bus.Names()[0]),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(true)),
	}, Body: []any{true}}
	forger.Send(m, nil)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if begins, err := c.Next(ctx); err != nil || begins {
		t.Errorf("Next after a forged signal: %t, %v, want false", begins, err)
	}
}

func TestTheDelayIsReadAgainAfterAReload(t *testing.T) {
	l := logindtest.Start(t)
	c := connect(t)
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
