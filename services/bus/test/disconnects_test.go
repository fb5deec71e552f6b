package test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	server "github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
)

// A service may come before the server is there, and leave as soon as it is: its end is announced all the same.
func TestNoClientConnectsUnnoticed(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cfg := service.Config{RuntimeDir: dir}
	bustest.NKeys(t, cfg.NKeys())
	left := make(chan error, 1)
	go func() {
		left <- func() error {
			key, err := nats.NkeyOptionFromSeed(bus.SeedFile(cfg.NKeys(), role.Prober))
			if err != nil {
				return err
			}
			for {
				nc, err := nats.Connect("nats://bus", key, nats.SetCustomDialer(socketDialer(cfg.BusSocket())),
					nats.Name(subject.Writer(role.Prober, "1")), nats.CustomInboxPrefix(subject.Inbox(role.Prober)))
				if errors.Is(err, nats.ErrNoServers) || errors.Is(err, os.ErrNotExist) ||
					errors.Is(err, nats.ErrTimeout) {
					if t.Context().Err() == nil {
						continue
					}
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
	b, err := bustest.Start(t.Context(), dir, slog.New(slog.DiscardHandler), func(o *server.ServerOptions) {
		o.Disconnected = func(r role.Role, replica string) { gone <- subject.Writer(r, replica) }
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := <-left; err != nil {
		t.Errorf("the first to come: %v", err)
	}
	select {
	case who := <-gone:
		if who != "prober.1" {
			t.Errorf("%s is gone", who)
		}
	case <-time.After(15 * time.Second):
		t.Error("the end of the prober is not reported")
	}
}

// The viewer reads every bucket over TLS, and writes none. No other client may use the port.
func TestTheViewerReadsAndCannotWrite(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cfg := service.Config{RuntimeDir: dir}
	bustest.NKeys(t, cfg.NKeys())
	cert := filepath.Join(dir, "view.crt")
	b, err := bustest.Start(t.Context(), dir, slog.New(slog.DiscardHandler), func(o *server.ServerOptions) {
		o.View = &server.View{Address: "127.0.0.1:0", CertFile: cert}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	n := &node{t: t, dir: dir}
	podsync, _ := n.raw(role.Podsync)
	if _, err := podsync.Request(subject.Entry(subject.Pods, "a"), []byte("value"), bound); err != nil {
		t.Fatal(err)
	}

	url := "tls://" + b.ViewAddress()
	view := func(seed string, options ...nats.Option) (*nats.Conn, error) {
		key, err := nats.NkeyOptionFromSeed(seed)
		if err != nil {
			t.Fatal(err)
		}
		return nats.Connect(url, append(options, key)...)
	}
	denied := make(chan error, 16)
	nc, err := view(bus.ViewerSeedFile(cfg.NKeys()), nats.RootCAs(cert),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	m, err := nc.Request(subject.List(subject.Pods, role.Podsync), []byte(`{"last_by_subj":"$KV.PODS.a"}`), bound)
	if err != nil || string(m.Data) != "value" {
		t.Errorf("the viewer reads %v, %v", m, err)
	}
	heard := make(chan *nats.Msg, 1)
	if _, err := nc.ChanSubscribe(subject.Entries(subject.Pods), heard); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
	if _, err := podsync.Request(subject.Entry(subject.Pods, "b"), []byte("later"), bound); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-heard:
		if m.Subject != "$KV.PODS.b" {
			t.Errorf("the viewer hears %s", m.Subject)
		}
	case <-time.After(bound):
		t.Error("the viewer hears nothing")
	}
	if err := nc.Publish(subject.Entry(subject.Pods, "a"), []byte("forged")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-denied:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("the viewer's put gives %v", err)
		}
	case <-time.After(bound):
		t.Error("the viewer's put is not denied")
	}

	if nc, err := view(bus.SeedFile(cfg.NKeys(), role.Podsync), nats.RootCAs(cert)); err == nil {
		nc.Close()
		t.Error("a service's key is taken at the port")
	}
	if nc, err := nats.Connect("nats://" + b.ViewAddress()); err == nil {
		nc.Close()
		t.Error("the port takes connections without a key")
	}
	if nc, err := nats.Connect("nats://bus", nats.SetCustomDialer(socketDialer(cfg.BusSocket())),
		mustKey(t, bus.ViewerSeedFile(cfg.NKeys()))); err == nil {
		nc.Close()
		t.Error("the viewer's key is taken at the socket")
	}
}

func mustKey(t *testing.T, seed string) nats.Option {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
