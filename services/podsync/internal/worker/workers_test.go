package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// What happens to a pod that nobody looks after is noticed, and not before every source has been heard: until then
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
		n.workers.Wake("nobody", "test")
		if noticed() {
			t.Error("an orphan is noticed before all pods are known")
		}
		n.dispatcher.SourceSynced(api)
		n.wait(time.Second)
		n.workers.Wake("a", "test")
		if noticed() {
			t.Error("a pod that runs is called an orphan")
		}
		n.workers.Wake("nobody", "test")
		n.workers.Wake("nobody", "test")
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
