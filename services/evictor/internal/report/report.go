// Package report puts NODE/pressure, and reads what an evictor before this one has put.
package report

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	evictorv1 "github.com/microlet/microlet/proto/microlet/evictor/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/evictor/internal/manager"
	"github.com/microlet/microlet/services/internal/bus"
)

// refresh is how often the pressure is put although it has not changed: readers judge its age.
const refresh = 30 * time.Second

// Writer is evictor's share of NODE; see bus.Writer.
type Writer interface {
	Refresh(key string, m proto.Message)
	Complete()
}

// Entry is NODE/pressure. One goroutine uses it.
type Entry struct {
	writer Writer
	before *bus.View[*evictorv1.Pressure]
	last   *evictorv1.Pressure
	put    time.Time
}

// New returns the entry, once the client runs.
func New(c *bus.Client) *Entry {
	return &Entry{
		writer: c.Own(subject.Node), before: bus.Watch[evictorv1.Pressure](c, subject.Node, subject.NodePressure, nil),
	}
}

// Before waits for what the bus has of an earlier evictor, at most as long as patience: without a bus it is nothing.
func (e *Entry) Before(ctx context.Context, patience time.Duration, turned func()) manager.Adopted {
	const poll = 100 * time.Millisecond
	for end := time.Now().Add(patience); !e.before.Synced() && time.Now().Before(end) && ctx.Err() == nil; {
		turned()
		time.Sleep(poll)
	}
	m, ok := e.before.Get(subject.NodePressure)
	if !ok {
		return manager.Adopted{}
	}
	return adopted(m)
}

func adopted(m *evictorv1.Pressure) manager.Adopted {
	a := manager.Adopted{LastMet: map[v1.NodeConditionType]time.Time{}}
	for _, c := range m.GetConditions() {
		if c.GetLastMet().IsValid() {
			a.LastMet[v1.NodeConditionType(c.GetType())] = c.GetLastMet().AsTime()
		}
	}
	if l := m.GetLastEviction(); l.GetTime().IsValid() {
		a.Last = manager.LastEviction{PodUID: l.GetPodUid(), Time: l.GetTime().AsTime()}
	}
	return a
}

// Put reports the pressure if a state has changed, and otherwise now and then.
func (e *Entry) Put(p manager.Pressure) {
	now := time.Now()
	m := &evictorv1.Pressure{Observed: timestamppb.New(now)}
	for _, c := range p.Conditions {
		one := &evictorv1.Pressure_Condition{Type: string(c.Type), State: state(c.Status), Problem: c.Problem}
		if !c.LastMet.IsZero() {
			one.LastMet = timestamppb.New(c.LastMet)
		}
		m.Conditions = append(m.Conditions, one)
	}
	if p.Last.PodUID != "" {
		m.LastEviction = &evictorv1.Pressure_Eviction{PodUid: p.Last.PodUID, Time: timestamppb.New(p.Last.Time)}
	}
	if now.Sub(e.put) < refresh && same(m, e.last) {
		return
	}
	e.last, e.put = m, now
	e.writer.Refresh(subject.NodePressure, m)
	e.writer.Complete() // it is the only key
}

// same compares all but times that go on while there is pressure.
func same(a, b *evictorv1.Pressure) bool {
	if b == nil || len(a.GetConditions()) != len(b.GetConditions()) ||
		!proto.Equal(a.GetLastEviction(), b.GetLastEviction()) {
		return false
	}
	for i, c := range a.GetConditions() {
		if o := b.GetConditions()[i]; c.GetState() != o.GetState() || c.GetProblem() != o.GetProblem() {
			return false
		}
	}
	return true
}

func state(s v1.ConditionStatus) evictorv1.Pressure_State {
	switch s {
	case v1.ConditionTrue:
		return evictorv1.Pressure_STATE_PRESENT
	case v1.ConditionFalse:
		return evictorv1.Pressure_STATE_NONE
	}
	return evictorv1.Pressure_STATE_UNKNOWN
}
