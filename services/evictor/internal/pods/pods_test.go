package pods

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/nodepods"
)

// node has pods as podsync publishes them; nil while they are not known.
type node map[string]*nodepods.Pod

func (n node) Get(uid string) (*nodepods.Pod, bool) { p, ok := n[uid]; return p, ok }
func (n node) All() map[string]*nodepods.Pod        { return n }
func (n node) Synced() bool                         { return n != nil }

// What is not known must not pass for gone.
func TestUnknownPodsMayRun(t *testing.T) {
	p := New(node(nil))
	if p.Known() || !p.Running("a") {
		t.Error("a pod that was not looked for is gone")
	}
	p.source = node{}
	if !p.Known() || p.Running("a") {
		t.Error("a pod that is not there runs")
	}
	p.source = node(nil) // the bus goes away
	if !p.Known() {
		t.Error("what was known is forgotten")
	}
}

func (n node) put(uid string, created int64, terminating bool, reason string, state podsyncv1.ContainerState) {
	n[uid] = &nodepods.Pod{
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, CreationTimestamp: metav1.Unix(created, 0)},
			Status:     v1.PodStatus{Reason: reason},
		},
		Terminating: terminating, Reported: true,
		Containers: []nodepods.Container{{Name: "c", ID: "id-" + uid, State: state}},
	}
}

func TestActivePodsAreThoseThatHaveNotEnded(t *testing.T) {
	n := node{}
	n.put("young", 20, false, "", nodepods.Running)
	n.put("old", 10, true, "", nodepods.Unknown)
	n.put("ended", 5, false, "", nodepods.Exited)
	n.put("deleted", 4, true, "", nodepods.Exited)
	n.put("crash-loops", 30, false, "", nodepods.Exited)
	n["ended"].Status.Phase = v1.PodFailed
	n["new"] = &nodepods.Pod{Pod: &v1.Pod{}} // podsync has not reported its status
	n.put("broken", 1, false, "", nodepods.Running)
	n["broken"].Err = errors.New("broken")
	active := New(n).Active()
	if len(active) != 3 || active[2].Name != "crash-loops" || active[0].Name != "old" || active[1].Name != "young" {
		t.Errorf("active are %+v", active)
	}
	if !New(n).Running("broken") {
		t.Error("what runs of a pod that cannot be read is not seen")
	}
}

func TestAnEvictionUnderWayIsSeen(t *testing.T) {
	n := node{}
	n.put("deleted", 1, true, "", nodepods.Running)
	n.put("evicted", 1, true, "Evicted", nodepods.Exited)
	n.put("runs", 1, false, "Evicted", nodepods.Running)
	n.put("before", 1, true, "Evicted", nodepods.Running)
	n["before"].Reported = false // the reason is one that the pod came with
	if got := New(n).Evicting(); got != "" {
		t.Errorf("%s is evicted", got)
	}
	n.put("hog", 1, true, "Evicted", nodepods.Running)
	if got := New(n).Evicting(); got != "hog" {
		t.Errorf("%q is evicted, want hog", got)
	}
	for _, p := range New(n).Active() {
		if IsEvicted(p) != (p.Name == "hog") {
			t.Errorf("%s is evicted: %t", p.Name, IsEvicted(p))
		}
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node{}
		n.put("hog", 1, true, "Evicted", nodepods.Running)
		began := time.Now()
		if New(n).Await(t.Context(), "hog") || time.Since(began) != 30*time.Second {
			t.Errorf("after %v it is said to have ended", time.Since(began))
		}
		delete(n, "hog")
		began = time.Now()
		if !New(n).Await(t.Context(), "hog") || time.Since(began) != time.Second {
			t.Errorf("the end was not seen, after %v", time.Since(began))
		}
	})
}
