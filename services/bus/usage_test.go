package bus

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	client "github.com/microlet/microlet/services/internal/bus"
)

// The store's streams are shown with what they hold, the empty ones too.
func TestUsage(t *testing.T) {
	dir := runtimeDir(t)
	log := slog.New(slog.DiscardHandler)
	nkeys := filepath.Join(dir, "nkeys")
	s, err := StartServer(t.Context(), ServerOptions{StoreDir: filepath.Join(dir, "bus"), NKeyDir: nkeys, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(append(traffic(s), newUsage(s))...)
	held := func(name, stream string) (value float64, ok bool) {
		t.Helper()
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch {
				case f.GetName() != name:
				case stream == "":
					value, ok = m.GetCounter().GetValue(), true
				case m.GetLabel()[0].GetValue() == stream:
					value, ok = m.GetGauge().GetValue(), true
				}
			}
		}
		return value, ok
	}
	stream := subject.Stream(subject.Heartbeats, role.PLEG)
	if n, ok := held("microlet_bus_store_entries", stream); n != 0 || !ok {
		t.Errorf("%s has %v entries at first, shown is %v", stream, n, ok)
	}
	c, err := client.New(client.Options{
		InProcess: s, SeedFile: client.SeedFile(nkeys, role.PLEG), Role: role.PLEG, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Own(subject.Heartbeats).Put(subject.HeartbeatKey(role.PLEG, "0"), &busv1.Heartbeat{Version: "v1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		entries, _ := held("microlet_bus_store_entries", stream)
		bytes, _ := held("microlet_bus_store_bytes", stream)
		if entries > 0 && bytes > 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%s has %v entries with %v bytes after a put", stream, entries, bytes)
			break
		}
	}
	for _, name := range []string{"microlet_bus_received_messages_total", "microlet_bus_sent_messages_total",
		"microlet_bus_received_bytes_total", "microlet_bus_sent_bytes_total"} {
		if n, ok := held(name, ""); n == 0 || !ok {
			t.Errorf("%s is %v after a put, shown is %v", name, n, ok)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
