package pods

import (
	"testing"
	"testing/synctest"
	"time"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// TestAGrantForAPodThatIsForgotten comes while the remains of the pod are removed. Nothing would forget the pod again.
func TestAGrantForAPodThatIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		p := testPod("a")
		n.apply(p)
		n.cri.Hang("RemoveContainer")
		n.dispatcher.RemovePod("a", podsyncv1.PodSource_POD_SOURCE_API)
		n.wait(5 * time.Second)
		if n.admission.gone != 1 || !n.workers.Known("a") {
			t.Fatalf("the pod is forgotten %d times, known %v", n.admission.gone, n.workers.Known("a"))
		}
		asked := n.allocation.applied.Load()
		n.workers.Granted("a")
		n.wait(time.Second)
		if got := n.allocation.applied.Load(); got != asked {
			t.Error("its resources were asked for again")
		}
	})
}
