// Package readerrors counts what cannot be read or believed, and logs each kind of it once an hour.
package readerrors

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
)

// The sources of figures. They are the values of the metric's label.
const (
	Cgroup     = "cgroup"
	Process    = "process"
	Machine    = "machine"
	Filesystem = "filesystem"
	Runtime    = "runtime"
	Pod        = "pod"
)

const (
	// again is when the same is logged again.
	again = time.Hour
	// maxSubjects bounds what is remembered; past it, all is forgotten, and may be logged again.
	maxSubjects = 1024
)

// Recorder takes complaints. It is safe for concurrent use.
type Recorder struct {
	log   *slog.Logger
	count *prometheus.CounterVec

	mu     sync.Mutex
	logged map[subject]time.Time
}

type subject struct{ source, of string }

// NewRecorder returns a book; nil metrics registers none.
func NewRecorder(log *slog.Logger, metrics prometheus.Registerer) *Recorder {
	b := &Recorder{
		log: log, logged: map[subject]time.Time{},
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_stats_skipped_total",
			Help: "Figures that stats skipped because they could not be read or believed, by source.",
		}, []string{"source"}),
	}
	for _, source := range []string{Cgroup, Process, Machine, Filesystem, Runtime, Pod} {
		b.count.WithLabelValues(source)
	}
	if metrics != nil {
		metrics.MustRegister(b.count)
	}
	return b
}

// Add counts something of a source that was skipped, and logs it unless the same was logged within the hour. of says
// what it is about, such as the name of a cgroup.
func (b *Recorder) Add(source, of string, err error) {
	b.count.WithLabelValues(source).Inc()
	b.mu.Lock()
	s := subject{source, of}
	last, known := b.logged[s]
	due := !known || time.Since(last) >= again
	if due {
		if len(b.logged) >= maxSubjects {
			clear(b.logged)
		}
		b.logged[s] = time.Now()
	}
	b.mu.Unlock()
	if due {
		b.log.Warn("figures skipped", logkey.Source, source, "of", of, logkey.Err, err)
	}
}
