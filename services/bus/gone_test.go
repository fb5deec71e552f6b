package bus

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	client "github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/proctest"
)

// A service whose connection is lost is told of at once, under the name that its key stands for.
func TestRunTellsWhoIsGone(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir = runtimeDir(t)
	cfg.Service.BusAddress = proctest.FreeAddress(t)
	run := func(f func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		stopped := false
		stop = func() {
			cancel()
			if stopped {
				return
			}
			stopped = true
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(stop)
		return stop
	}
	connect := func(r role.Role, replica string) (*client.Client, chan struct{}) {
		c, err := client.New(client.Options{
			Address: cfg.Service.BusAddress, SeedFile: client.SeedFile(cfg.Service.NKeys(), r), Role: r, Replica: replica,
			Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		connected := make(chan struct{}, 16)
		c.OnConnect(func() { connected <- struct{}{} })
		return c, connected
	}
	wait := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(15 * time.Second):
			t.Fatalf("no %s", what)
		}
	}
	run(func(ctx context.Context) error { return Run(ctx, cfg) })

	listener, connected := connect(role.Podsync, "0")
	gone := make(chan string, 16)
	listener.Subscribe(subject.GoneEvents, func(subj string, _ []byte) { gone <- subj })
	run(listener.Run)
	wait("connection of the listener", connected)

	prober, connected := connect(role.Prober, "1")
	stop := run(prober.Run)
	wait("connection of the prober", connected)
	began := time.Now()
	stop()
	select {
	case subj := <-gone:
		if r, replica, ok := subject.GoneEventOf(subj); !ok || r != role.Prober || replica != "1" {
			t.Errorf("gone is %s", subj)
		}
		t.Logf("told after %v", time.Since(began))
	case <-time.After(15 * time.Second):
		t.Error("nobody told that the prober is gone")
	}
}

// A service may come before the server is there, and leave as soon as it is: it is told of all the same.
func TestNobodyComesUnnoticed(t *testing.T) {
	dir := runtimeDir(t)
	address, keys := proctest.FreeAddress(t), filepath.Join(dir, "nkeys")
	left := make(chan error, 1)
	go func() {
		left <- func() error {
			c, err := nats.NkeyOptionFromSeed(client.SeedFile(keys, role.Prober))
			if err != nil {
				return err
			}
			for {
				nc, err := nats.Connect(address, c, nats.Name(subject.Writer(role.Prober, "1")), nats.CustomInboxPrefix(subject.Inbox(role.Prober)))
				if errors.Is(err, nats.ErrNoServers) && t.Context().Err() == nil {
					continue
				}
				if err != nil {
					return err
				}
				nc.Close()
				return nil
			}
		}()
	}()
	gone := make(chan string, 16)
	s, err := StartServer(t.Context(), ServerOptions{
		Address: address, StoreDir: filepath.Join(dir, "bus"), NKeyDir: keys, Log: slog.New(slog.DiscardHandler),
		Gone: func(r role.Role, replica string) { gone <- subject.Writer(r, replica) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-left; err != nil {
		t.Errorf("the first to come: %v", err)
	}
	select {
	case who := <-gone:
		if who != "prober.1" {
			t.Errorf("%s is gone", who)
		}
	case <-time.After(15 * time.Second):
		t.Error("nobody told that the prober is gone")
	}
}
