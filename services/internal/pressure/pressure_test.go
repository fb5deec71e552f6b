package pressure

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	evictorv1 "github.com/microlet/microlet/proto/microlet/evictor/v1"
)

// entry is NODE/pressure as it came at a time.
type entry struct {
	message  *evictorv1.Pressure
	received time.Time
}

func (e entry) Get(string) (*evictorv1.Pressure, bool) { return e.message, e.message != nil }
func (e entry) Received(string) time.Time              { return e.received }

func TestThePressureHoldsAndIsThenUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reader{entry{&evictorv1.Pressure{Conditions: []*evictorv1.Pressure_Condition{
			{Type: "MemoryPressure", State: evictorv1.Pressure_STATE_PRESENT},
			{Type: "DiskPressure", State: evictorv1.Pressure_STATE_UNKNOWN, Problem: "statfs"},
			{Type: "PIDPressure", State: evictorv1.Pressure_STATE_NONE},
			{Type: "Ready", State: evictorv1.Pressure_STATE_PRESENT}, // is not evictor's to say
		}}, time.Now()}}
		want := []State{
			{v1.NodeMemoryPressure, v1.ConditionTrue, "", Held - time.Second},
			{v1.NodeDiskPressure, v1.ConditionUnknown, "statfs", Held - time.Second},
			{v1.NodePIDPressure, v1.ConditionFalse, "", Held - time.Second},
		}
		time.Sleep(Held - time.Second)
		if got := r.States(); !slices.Equal(got, want) {
			t.Errorf("states %v, want %v", got, want)
		}
		if got := r.Under(); !slices.Equal(got, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
			t.Errorf("under %v", got)
		}
		time.Sleep(time.Second)
		if got := r.States(); got != nil || r.Under() != nil {
			t.Errorf("a stale pressure: %v", got)
		}
	})
	if got := (&Reader{entry{}}).States(); got != nil {
		t.Errorf("no pressure: %v", got)
	}
}
