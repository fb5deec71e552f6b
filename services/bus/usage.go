package bus

import (
	"log/slog"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
)

// usage shows what each stream holds, and what has passed through the bus, as it is when it is asked for. A bucket has
// a stream for each of its owners, which names both.
type usage struct {
	server *Server

	mu             sync.Mutex
	entries, bytes *prometheus.GaugeVec

	messages, passed *prometheus.Desc
}

var _ prometheus.Collector = (*usage)(nil)

func newUsage(s *Server) *usage {
	labels := []string{"stream"}
	return &usage{
		server: s,
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_bus_store_entries", Help: "Entries in a stream of the bus.",
		}, labels),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_bus_store_bytes", Help: "Bytes of the entries in a stream of the bus.",
		}, labels),
		messages: prometheus.NewDesc("microlet_bus_messages_total",
			"Messages that the bus received from its clients (in) and sent to them (out).", []string{"direction"}, nil),
		passed: prometheus.NewDesc("microlet_bus_message_bytes_total",
			"Bytes of the messages that the bus received from its clients (in) and sent to them (out).",
			[]string{"direction"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (u *usage) Describe(to chan<- *prometheus.Desc) {
	u.entries.Describe(to)
	u.bytes.Describe(to)
	to <- u.messages
	to <- u.passed
}

// Collect implements prometheus.Collector.
func (u *usage) Collect(to chan<- prometheus.Metric) {
	u.collectTraffic(to)
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

func (u *usage) collectTraffic(to chan<- prometheus.Metric) {
	v, err := u.server.ns.Varz(nil)
	if err != nil {
		slog.Debug("what has passed through the bus is not known", logkey.Err, err)
		return
	}
	count := func(d *prometheus.Desc, n int64, direction string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), direction)
	}
	count(u.messages, v.InMsgs, "in")
	count(u.messages, v.OutMsgs, "out")
	count(u.passed, v.InBytes, "in")
	count(u.passed, v.OutBytes, "out")
}
