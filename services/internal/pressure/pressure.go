// Package pressure reads NODE/pressure, which evictor writes.
//
// The last value holds for Held while evictor or the bus is down. After that the pressure is unknown.
package pressure

import (
	"time"

	v1 "k8s.io/api/core/v1"

	evictorv1 "github.com/microlet/microlet/proto/microlet/evictor/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
)

// Held is how long an unconfirmed pressure counts: evictionPressureTransitionPeriod's default.
const Held = 5 * time.Minute

// State is one pressure condition.
type State struct {
	Type v1.NodeConditionType
	// Status is Unknown if evictor cannot read a signal of the condition; Problem then says why.
	Status  v1.ConditionStatus
	Problem string
	// Age is how long ago evictor said so last.
	Age time.Duration
}

// source is NODE/pressure; see bus.View.
type source interface {
	Get(key string) (*evictorv1.Pressure, bool)
	Received(key string) time.Time
}

// Reader knows the newest pressure. It is safe for concurrent use, and never waits.
type Reader struct{ source source }

// Watch returns the reader, which knows nothing before the client runs.
func Watch(c *bus.Client) *Reader {
	return &Reader{bus.Watch[evictorv1.Pressure](c, subject.Node, subject.NodePressure, nil)}
}

// States are the conditions as evictor reports them; none without reports.
func (r *Reader) States() []State {
	m, ok := r.source.Get(subject.NodePressure)
	age := time.Since(r.source.Received(subject.NodePressure))
	if !ok || age >= Held {
		return nil
	}
	var all []State
	for _, c := range m.GetConditions() {
		t := v1.NodeConditionType(c.GetType())
		switch t {
		case v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure:
			all = append(all, State{Type: t, Status: status(c.GetState()), Problem: c.GetProblem(), Age: age})
		}
	}
	return all
}

// Under are the conditions that there are. Unknown is none.
func (r *Reader) Under() []v1.NodeConditionType {
	var under []v1.NodeConditionType
	for _, s := range r.States() {
		if s.Status == v1.ConditionTrue {
			under = append(under, s.Type)
		}
	}
	return under
}

func status(s evictorv1.Pressure_State) v1.ConditionStatus {
	switch s {
	case evictorv1.Pressure_STATE_PRESENT:
		return v1.ConditionTrue
	case evictorv1.Pressure_STATE_NONE:
		return v1.ConditionFalse
	}
	return v1.ConditionUnknown
}
