package allocation

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TestAResizeThatGivesRoomOfOneResource gives it at once to those that wait, also if it takes more of another.
func TestAResizeThatGivesRoomOfOneResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "2500m")
		memory := func(p *v1.Pod, amount string) *v1.Pod {
			p = p.DeepCopy()
			p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse(amount)
			return p
		}
		b = memory(b, "1Gi")
		n.admit(a, b)
		n.want(asking(a, "2"))
		n.wantCPU("a:1")
		n.want(memory(asking(b, "1"), "2Gi"))
		n.wantCPU("a:2 b:1")
	})
}

// TestEachGrantThatFailedIsTriedAgain, not the first alone.
func TestEachGrantThatFailedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "1")
		n.admit(a, b)
		n.granted.set(func(d *disk) { d.full = true })
		n.want(asking(a, "1500m"))
		time.Sleep(soon / 2)
		n.want(asking(b, "1500m"))
		n.wantShown("b", "PodResizePending Deferred 2")
		n.granted.set(func(d *disk) { d.full = false })
		time.Sleep(soon)
		n.wantCPU("a:1500m b:1500m")
	})
}

// TestAGrantOfAPodThatHasEnded shows nothing: the grant was being written when the pod ended, and its worker has not
// said so to the admission.
func TestAGrantOfAPodThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		n.admit(a)
		hangs := make(chan struct{})
		n.granted.set(func(d *disk) { d.hangs = hangs })
		n.want(asking(a, "2"))
		n.Ended("a")
		close(hangs)
		n.wantShown("a")
		n.count(n.metrics.inProgress, 0)
		if got := n.reasons(); len(got) > 0 {
			t.Errorf("events %v", got)
		}
	})
}

// TestTheMessageOfADeferredResize follows the figures, and not each of them: each change is a call to the API server.
func TestTheMessageOfADeferredResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "2500m")
		n.admit(a, b)
		n.want(asking(a, "4"))
		n.changed()
		changes := 0
		const minute = 60
		for i := range minute {
			b = asking(b, fmt.Sprintf("%dm", 2499-i))
			n.want(b)
			time.Sleep(time.Second)
			for _, uid := range n.changed() {
				if uid == "a" {
					changes++
				}
			}
		}
		if most := minute / int(soon/time.Second); changes == 0 || changes > most {
			t.Errorf("the message has changed %d times in a minute, want at most %d", changes, most)
		}
		time.Sleep(period)
		synctest.Wait()
		if got := n.Conditions("a")[0].Message; !strings.Contains(got, "used: 2440") {
			t.Errorf("in the end it says %q", got)
		}
	})
}

// halfWay is a disk on which a write fails after it has had its effect, as a folder does that cannot be synced.
type halfWay struct{ *disk }

func (d halfWay) Write(changes map[types.UID]*pod.Resources) map[types.UID]error {
	d.set(func(of *disk) {
		for uid, r := range changes {
			if r != nil {
				of.pods[uid] = *r
			}
		}
	})
	return d.disk.Write(changes)
}

// TestAWriteThatFailsHalfWay leaves nothing in the file that was not granted: the next podsync would take it as
// granted.
func TestAWriteThatFailsHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		synctest.Wait()
		n.Allocation.granted.records = halfWay{n.granted}
		a, b := testPod("a", "1"), testPod("b", "1")
		n.admit(a, b)
		n.granted.set(func(d *disk) { d.full = true })
		n.want(asking(a, "2"))
		n.wantCPU("a:1")
		n.granted.set(func(d *disk) { d.full = false })
		n.want(asking(asking(a, "2"), "1")) // it is not tried again
		time.Sleep(firstRewrite)
		synctest.Wait()
		if got, _ := n.granted.Get("a"); cpuOf(got) != "1" {
			t.Errorf("the file has %s", cpuOf(got))
		}
		if e, _ := n.Explain("b"); e.Unwritten != nil {
			t.Error(e.Unwritten)
		}
	})
}
