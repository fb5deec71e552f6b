package test

import (
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// podsync is podsync's side of the buckets of pods.
type podsync struct {
	t              *testing.T
	pods, statuses *bus.Writer
}

func (p *podsync) put(uid string) {
	p.t.Helper()
	raw, err := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)}}).Marshal()
	if err != nil {
		p.t.Fatal(err)
	}
	p.pods.Put(subject.PodKey(uid), &podsyncv1.Pod{Pod: raw})
}

func (p *podsync) report(uid string, phase v1.PodPhase) {
	p.t.Helper()
	raw, err := (&v1.PodStatus{Phase: phase}).Marshal()
	if err != nil {
		p.t.Fatal(err)
	}
	p.statuses.Put(subject.PodKey(uid), &podsyncv1.PodStatus{Status: raw})
}

func (p *podsync) forget(uid string) {
	p.pods.Delete(subject.PodKey(uid))
	p.statuses.Delete(subject.PodKey(uid))
}

// TestTheNodesPods has services of two roles follow the pods, while the bus is there, while it is not, and after it.
func TestTheNodesPods(t *testing.T) {
	t.Parallel()
	n := bustest.New(t)
	p := &podsync{t: t}
	n.Client(role.Podsync, func(c *bus.Client) { p.pods, p.statuses = c.Own(subject.Pods), c.Own(subject.PodStatus) })
	var full, plain *nodepods.View
	changes := make(chan string, 1000)
	n.Client(role.Evictor, func(c *bus.Client) {
		full = nodepods.Watch(c, slog.New(slog.DiscardHandler), func(uid string) { changes <- uid })
	})
	n.Client(role.ImageGC, func(c *bus.Client) {
		plain = nodepods.WatchWithoutStatus(c, slog.New(slog.DiscardHandler), nil)
	})
	await := func(what string, holds func() bool) {
		t.Helper()
		proctest.Await(t, time.Minute, what, holds)
	}
	phase := func(v *nodepods.View, uid string) v1.PodPhase {
		one, ok := v.Get(uid)
		switch {
		case !ok:
			return "gone"
		case one.Err != nil || one.Name != uid:
			t.Errorf("pod %s is %+v", uid, one)
		}
		return one.Status.Phase
	}
	p.put("a")
	p.put("b")
	p.report("a", v1.PodRunning)
	await("the pods so far", func() bool { return full.Synced() && plain.Synced() && phase(full, "a") == v1.PodRunning })
	if full.Complete() || plain.Complete() {
		t.Error("podsync has not said that these are all")
	}
	p.pods.Complete()
	p.statuses.Complete()
	await("that these are all", func() bool { return full.Complete() && plain.Complete() })
	// A value that the bus has not acknowledged is written once more to the next one.
	await("all pods", func() bool {
		return p.pods.Pending() == 0 && p.statuses.Pending() == 0 && full.Synced() && plain.Synced() &&
			phase(full, "a") == v1.PodRunning && phase(full, "b") == "" &&
			phase(plain, "a") == "" && phase(plain, "b") == ""
	})
	before, _ := full.Get("a")
	for range len(changes) {
		<-changes
	}

	n.StopBus()
	await("the loss of the bus", func() bool { return !full.Synced() && !plain.Synced() })
	if phase(full, "a") != v1.PodRunning || len(plain.All()) != 2 || !full.Complete() || !plain.Complete() {
		t.Error("without the bus, what was known is forgotten")
	}
	p.forget("b")
	p.report("c", v1.PodPending)
	p.put("c")
	n.StartBus()
	await("what has changed meanwhile", func() bool {
		return full.Synced() && plain.Synced() && phase(full, "b") == "gone" && phase(plain, "b") == "gone" &&
			phase(full, "c") == v1.PodPending && phase(plain, "c") == ""
	})
	if again, _ := full.Get("a"); again != before {
		t.Error("a pod that has not changed was decoded again")
	}
	for range len(changes) {
		if uid := <-changes; uid == "a" {
			t.Error("a pod that has not changed is reported")
		}
	}
	p.report("a", v1.PodFailed)
	await("the end of a", func() bool { return phase(full, "a") == v1.PodFailed })
}
