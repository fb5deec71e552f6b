package pods

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// bucket is a bucket's values.
type bucket[M any] map[string]M

func (b bucket[M]) All() map[string]M { return b }

// node has pods as podsync would publish them.
type node struct {
	pods     bucket[*podsyncv1.Pod]
	statuses bucket[*podsyncv1.PodStatus]
}

func newNode() *node {
	return &node{bucket[*podsyncv1.Pod]{}, bucket[*podsyncv1.PodStatus]{}}
}

func (b bucket[M]) Synced() bool { return b != nil }

func (n *node) list() *Pods {
	return &Pods{pods: n.pods, statuses: n.statuses, log: slog.New(slog.DiscardHandler)}
}

// What is not known must not pass for gone.
func TestUnknownPodsMayRun(t *testing.T) {
	p := &Pods{pods: bucket[*podsyncv1.Pod](nil), statuses: bucket[*podsyncv1.PodStatus]{}}
	if p.Known() || !p.Running("a") {
		t.Error("a pod that nobody has looked for is gone")
	}
	p.pods = bucket[*podsyncv1.Pod]{}
	if !p.Known() || p.Running("a") {
		t.Error("a pod that is not there runs")
	}
	p.pods = bucket[*podsyncv1.Pod](nil) // the bus goes away
	if !p.Known() {
		t.Error("what was known is forgotten")
	}
}

func (n *node) put(t *testing.T, uid string, created int64, terminating bool, reason string,
	state podsyncv1.ContainerState) {
	t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, CreationTimestamp: metav1.Unix(created, 0)}}
	body, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	status, err := (&v1.PodStatus{Reason: reason}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	n.pods[uid] = &podsyncv1.Pod{Pod: body, Terminating: terminating}
	n.statuses[uid] = &podsyncv1.PodStatus{Status: status, Containers: []*podsyncv1.Container{
		{Name: "c", Id: "id-" + uid, State: state},
	}}
}

const (
	runs  = podsyncv1.ContainerState_CONTAINER_STATE_RUNNING
	ended = podsyncv1.ContainerState_CONTAINER_STATE_EXITED
)

func (n *node) phase(t *testing.T, uid string, phase v1.PodPhase) {
	t.Helper()
	status, err := (&v1.PodStatus{Phase: phase}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	n.statuses[uid].Status = status
}

func TestActivePodsAreThoseThatHaveNotEnded(t *testing.T) {
	n := newNode()
	n.put(t, "young", 20, false, "", runs)
	n.put(t, "old", 10, true, "", runs)
	n.put(t, "ended", 5, false, "", ended)
	n.put(t, "deleted", 4, true, "", ended)
	n.put(t, "crash-loops", 30, false, "", ended)
	n.phase(t, "ended", v1.PodFailed)
	n.pods["new"] = n.pods["young"] // podsync has not said anything of it
	n.pods["broken"], n.statuses["broken"] = &podsyncv1.Pod{Pod: []byte{0xff}}, n.statuses["old"]
	active := n.list().Active()
	if len(active) != 3 || active[2].Name != "crash-loops" || active[0].Name != "old" || active[1].Name != "young" ||
		active[1].Containers["c"] != "id-young" {
		t.Errorf("active are %+v", active)
	}
}

func TestAnEvictionUnderWayIsSeen(t *testing.T) {
	n := newNode()
	n.put(t, "deleted", 1, true, "", runs)
	n.put(t, "evicted", 1, true, "Evicted", ended)
	n.put(t, "runs", 1, false, "Evicted", runs)
	if got := n.list().Evicting(); got != "" {
		t.Errorf("%s is evicted", got)
	}
	n.put(t, "hog", 1, true, "Evicted", runs)
	if got := n.list().Evicting(); got != "hog" {
		t.Errorf("%q is evicted, want hog", got)
	}
	for _, p := range n.list().Active() {
		if p.Evicting != (p.Name == "hog") {
			t.Errorf("%s is evicted: %t", p.Name, p.Evicting)
		}
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.put(t, "hog", 1, true, "Evicted", runs)
		began := time.Now()
		if n.list().Await(t.Context(), "hog") || time.Since(began) != 30*time.Second {
			t.Errorf("after %v it is said to have ended", time.Since(began))
		}
		delete(n.pods, "hog")
		began = time.Now()
		if !n.list().Await(t.Context(), "hog") || time.Since(began) != time.Second {
			t.Errorf("the end was not seen, after %v", time.Since(began))
		}
	})
}
