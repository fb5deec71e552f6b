package bus

import (
	"log/slog"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
)

// usage shows what each stream holds, as it is when it is asked for. A bucket has a stream for each of its owners, and
// the stream's name has both.
type usage struct {
	server *Server

	mu             sync.Mutex
	entries, bytes *prometheus.GaugeVec
}

var _ prometheus.Collector = (*usage)(nil)

func newUsage(s *Server) *usage {
	labels := []string{"stream"}
	return &usage{
		server: s,
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_bus_store_entries", Help: "Entries in a stream of the bus's store.",
		}, labels),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_bus_store_bytes", Help: "Bytes of the entries in a stream of the bus's store.",
		}, labels),
	}
}

// Describe implements prometheus.Collector.
func (u *usage) Describe(to chan<- *prometheus.Desc) {
	u.entries.Describe(to)
	u.bytes.Describe(to)
}

// Collect implements prometheus.Collector.
func (u *usage) Collect(to chan<- prometheus.Metric) {
	store, err := u.server.ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		slog.Debug("usage of the store is not known", logkey.Err, err)
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, account := range store.AccountDetails {
		for _, s := range account.Streams {
			u.entries.WithLabelValues(s.Name).Set(float64(s.State.Msgs))
			u.bytes.WithLabelValues(s.Name).Set(float64(s.State.Bytes))
		}
	}
	u.entries.Collect(to)
	u.bytes.Collect(to)
}

// traffic counts what has passed through the bus, as it is when it is asked for.
func traffic(s *Server) []prometheus.Collector {
	count := func(of func(*server.Varz) int64) func() float64 {
		return func() float64 {
			v, err := s.ns.Varz(nil)
			if err != nil {
				slog.Debug("what has passed through the bus is not known", logkey.Err, err)
				return 0
			}
			return float64(of(v))
		}
	}
	return []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_bus_received_messages_total", Help: "Messages that the bus received from its clients.",
		}, count(func(v *server.Varz) int64 { return v.InMsgs })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_bus_sent_messages_total", Help: "Messages that the bus sent to its clients.",
		}, count(func(v *server.Varz) int64 { return v.OutMsgs })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_bus_received_bytes_total", Help: "Bytes of the messages that the bus received from its clients.",
		}, count(func(v *server.Varz) int64 { return v.InBytes })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "microlet_bus_sent_bytes_total", Help: "Bytes of the messages that the bus sent to its clients.",
		}, count(func(v *server.Varz) int64 { return v.OutBytes })),
	}
}
