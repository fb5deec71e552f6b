package pods

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
)

// What happens to a pod that has no worker is noticed, and not before every source has been heard: until then
// a pod without a worker may be one that is yet to come.
func TestOrphansAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		noticed := func() bool {
			select {
			case <-n.workers.Orphans():
				return true
			default:
				return false
			}
		}
		p := testPod("a")
		n.apply(p)
		n.workers.Wake("unknown", "test")
		if noticed() {
			t.Error("an orphan is noticed before all pods are known")
		}
		n.dispatcher.SourceSynced(api)
		n.wait(time.Second)
		n.workers.Wake("a", "test")
		if noticed() {
			t.Error("a pod that runs is called an orphan")
		}
		n.workers.Wake("unknown", "test")
		n.workers.Wake("unknown", "test")
		if !noticed() || noticed() {
			t.Error("two wake-ups of a pod without a worker are to make one notice")
		}
		n.dispatcher.SetPod(deleted(p, 1), api)
		n.wait(time.Minute)
		n.workers.Wake("a", "test")
		if !noticed() {
			t.Error("a pod that has ended is not noticed")
		}
	})
}

// However often all workers are to be woken, one timer for each is enough, and none that is woken is forgotten.
func TestCallsThatWakeAllAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 5
		n := startNode(t)
		for i := range pods {
			n.dispatcher.SetPod(testPod(types.UID(fmt.Sprint("p", i))), api)
		}
		n.wait(10 * time.Second)
		wakes := func() float64 { return testutil.ToFloat64(n.workers.metrics.Wakes.WithLabelValues("test")) }
		for range 1000 {
			n.workers.WakeAll("test")
		}
		n.wait(adoptionJitter)
		if got := wakes(); got != pods || len(n.workers.toWake) != 0 {
			t.Errorf("%v wake-ups of %d pods, and %d wait", got, pods, len(n.workers.toWake))
		}
		// A call that comes while some workers are still to be woken wakes the others too.
		n.workers.WakeAll("test")
		n.wait(adoptionJitter / 2)
		n.workers.WakeAll("test")
		early := wakes() - pods
		n.wait(2 * adoptionJitter)
		if got := wakes() - pods; got != pods+early {
			t.Errorf("%v wake-ups after two calls, of which %v were between them", got, early)
		}
	})
}

// A caller that wakes a worker without end has it sync some times a second, and once more after the last call.
func TestWakesWithoutEnd(t *testing.T) {
	for name, wake := range map[string]func(*Workers){
		"pleg":   func(w *Workers) { w.Wake("a", "pleg") },
		"prober": func(w *Workers) { w.Probed("a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t)
				n.apply(testPod("a"))
				n.wait(10 * time.Second)
				syncs := func() int {
					var m dto.Metric
					if err := n.workers.metrics.syncs.WithLabelValues(syncing.String()).(prometheus.Metric).Write(&m); err != nil {
						t.Fatal(err)
					}
					return int(m.GetHistogram().GetSampleCount())
				}
				before := syncs()
				const seconds = 10
				for range 1000 * seconds {
					wake(n.workers)
					n.wait(time.Millisecond)
				}
				if got := syncs() - before; got > wakeBurst+2*wakeRate*seconds || got < wakeRate*seconds {
					t.Errorf("%d syncs within %d s", got, seconds)
				}
				n.wait(time.Second)
				before = syncs()
				wake(n.workers)
				n.wait(time.Second)
				if got := syncs() - before; got != 1 {
					t.Errorf("%d syncs for one call", got)
				}
			})
		})
	}
}
