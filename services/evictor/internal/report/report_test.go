package report

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	evictorv1 "github.com/microlet/microlet/proto/microlet/evictor/v1"
	"github.com/microlet/microlet/services/evictor/internal/manager"
)

// writer keeps what was put.
type writer []*evictorv1.Pressure

func (w *writer) Refresh(_ string, m proto.Message) { *w = append(*w, m.(*evictorv1.Pressure)) }
func (w *writer) Complete()                         {}

func pressure(memory v1.ConditionStatus, lastMet time.Time) manager.Pressure {
	return manager.Pressure{Conditions: []manager.Condition{
		{Type: v1.NodeMemoryPressure, Status: memory, LastMet: lastMet},
		{Type: v1.NodeDiskPressure, Status: v1.ConditionUnknown, Problem: "no disk"},
	}}
}

func TestAChangeIsPutAtOnceAndTheRestNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w writer
		e := &Entry{writer: &w}
		put := func(want int, p manager.Pressure) {
			t.Helper()
			if e.Put(p); len(w) != want {
				t.Errorf("%d times put, want %d", len(w), want)
			}
		}
		put(1, pressure(v1.ConditionFalse, time.Time{}))
		put(1, pressure(v1.ConditionFalse, time.Time{}))
		put(2, pressure(v1.ConditionTrue, time.Now()))
		time.Sleep(time.Second)
		put(2, pressure(v1.ConditionTrue, time.Now())) // only the time of the threshold went on
		time.Sleep(29 * time.Second)
		put(3, pressure(v1.ConditionTrue, time.Now()))
		evicting := pressure(v1.ConditionTrue, time.Now())
		evicting.Last = manager.LastEviction{PodUID: "u", Time: time.Now()}
		put(4, evicting)
	})
}

func TestWhatIsPutIsAdopted(t *testing.T) {
	var w writer
	met := time.Unix(1_700_000_000, 0).UTC()
	p := pressure(v1.ConditionTrue, met)
	p.Last = manager.LastEviction{PodUID: "u", Time: met.Add(time.Second)}
	(&Entry{writer: &w}).Put(p)
	if c := w[0].GetConditions(); c[0].GetState() != evictorv1.Pressure_STATE_PRESENT ||
		c[1].GetState() != evictorv1.Pressure_STATE_UNKNOWN || c[1].GetProblem() != "no disk" {
		t.Errorf("put %v", w[0])
	}
	a := adopted(w[0])
	if !a.LastMet[v1.NodeMemoryPressure].Equal(met) || len(a.LastMet) != 1 || a.Last != p.Last {
		t.Errorf("adopted %+v", a)
	}
	if a := adopted(&evictorv1.Pressure{}); len(a.LastMet) != 0 || a.Last.PodUID != "" {
		t.Errorf("of nothing adopted %+v", a)
	}
}
