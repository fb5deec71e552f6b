package bus

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	client "github.com/microlet/microlet/services/internal/bus"
)

// A lost connection of a service is reported at once, under the name that belongs to its key.
func TestRunTellsWhoIsGone(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir = runtimeDir(t)
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
			Socket:   cfg.Service.BusSocket(),
			SeedFile: client.SeedFile(cfg.Service.NKeys(), r),
			Role:     r,
			Replica:  replica,
			Log:      slog.New(slog.DiscardHandler),
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
		case <-time.After(time.Minute):
			t.Fatalf("no %s", what)
		}
	}
	run(func(ctx context.Context) error { return Run(ctx, cfg) })

	listener, connected := connect(role.Podsync, "0")
	gone := make(chan string, 16)
	listener.Subscribe(subject.DisconnectEvents, func(subj string, _ []byte) { gone <- subj })
	run(listener.Run)
	wait("connection of the listener", connected)

	prober, connected := connect(role.Prober, "1")
	stop := run(prober.Run)
	wait("connection of the prober", connected)
	began := time.Now()
	stop()
	select {
	case subj := <-gone:
		if r, replica, ok := subject.DisconnectEventOf(subj); !ok || r != role.Prober || replica != "1" {
			t.Errorf("gone is %s", subj)
		}
		t.Logf("reported after %v", time.Since(began))
	case <-time.After(time.Minute):
		t.Error("the end of the prober was not reported")
	}
}

// A connection's name is the client's own choice. One that is no replica's ends nothing but that connection.
func TestANameThatIsNoReplicas(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir = runtimeDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	key, err := nats.NkeyOptionFromSeed(client.SeedFile(cfg.Service.NKeys(), role.PLEG))
	if err != nil {
		t.Fatal(err)
	}
	connect := func(name string) *nats.Conn {
		t.Helper()
		for {
			nc, err := nats.Connect("nats://bus", key, nats.Name(name),
				nats.SetCustomDialer(socketDialer(cfg.Service.BusSocket())))
			if err == nil {
				return nc
			}
			select {
			case err := <-done:
				t.Fatalf("the bus has ended: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	for _, name := range []string{"pleg.a b", "pleg.", "pleg.>", "pleg." + strings.Repeat("x", 1000), "pleg.a.b",
		"pleg"} {
		connect(name).Close()
	}
	nc := connect("pleg.0")
	defer nc.Close()
	if err := nc.FlushTimeout(15 * time.Second); err != nil {
		t.Errorf("the bus does not answer: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the bus ended with %v", err)
	}
}

type socketDialer string

func (d socketDialer) Dial(_, _ string) (net.Conn, error) { return net.Dial("unix", string(d)) }
