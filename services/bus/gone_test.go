package bus

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	client "github.com/microlet/microlet/services/internal/bus"
)

// A service whose connection is lost is told of at once, under the name that its key stands for.
func TestRunTellsWhoIsGone(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir = runtimeDir(t)
	cfg.Service.BusAddress = freeAddress(t)
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
