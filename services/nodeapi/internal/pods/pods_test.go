package pods

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

type source map[string]*nodepods.Pod

func (s source) All() map[string]*nodepods.Pod { return s }
func (s source) Synced() bool                  { return true }

func pod(uid types.UID, change func(*v1.Pod)) *nodepods.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
	change(p)
	return &nodepods.Pod{Pod: p, Desired: p}
}

func TestByName(t *testing.T) {
	old, young := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	known := source{
		// The same name again, while the one before still ends.
		"a": pod("a", func(p *v1.Pod) { p.CreationTimestamp, p.DeletionTimestamp = young, &young }),
		"b": pod("b", func(p *v1.Pod) { p.CreationTimestamp = old }),
		"c": pod("c", func(p *v1.Pod) { p.Name = "other" }),
		"s": pod("s", func(p *v1.Pod) {
			p.Name, p.Annotations = "static", map[string]string{podutil.ConfigSourceAnnotation: "file"}
		}),
		"x": {Pod: &v1.Pod{}, Err: errors.New("this is no pod")},
	}
	p := New(known)
	if found, ok := p.ByName("ns", "p"); !ok || found.UID != "b" {
		t.Fatalf("found %v", found)
	}
	if _, ok := p.ByName("ns", "nosuch"); ok {
		t.Error("a pod that is not there is found")
	}
	if _, ok := p.ByName("other", "p"); ok {
		t.Error("a pod of another namespace is found")
	}
	if _, ok := p.ByName("", ""); ok {
		t.Error("a pod that cannot be read is found")
	}
	found, ok := p.ByName("ns", "static")
	if !ok || !Is(found, "its-mirror") || !Is(found, "") {
		t.Errorf("a static pod is asked for by its mirror's UID: %v", found)
	}
	for uid, want := range map[types.UID]bool{"c": true, "": true, "b": false} {
		if other, ok := p.ByName("ns", "other"); !ok || Is(other, uid) != want {
			t.Errorf("UID %q means pod c: want %t", uid, want)
		}
	}
	if _, err := p.List(); err == nil {
		t.Error("a list that lacks what cannot be read is no error")
	}
	delete(known, "x")
	if list, err := p.List(); err != nil || len(list) != 4 || list[0].Name != "other" {
		t.Errorf("the list is %v, %v", list, err)
	}
}

// TestAllocated: what is granted is not what a pod asks for while a resize waits.
func TestAllocated(t *testing.T) {
	running := func(uid types.UID, phase v1.PodPhase) *nodepods.Pod {
		p := pod(uid, func(p *v1.Pod) { p.Name, p.Status.Phase = string(uid), phase })
		p.Reported = true
		return p
	}
	waits := running("waits", v1.PodRunning)
	waits.Spec.Priority, waits.Desired = new(int32(1)), waits.DeepCopy()
	waits.Desired.Spec.Priority = new(int32(2)) // stands for other resources
	unknown := running("unknown", v1.PodPending)
	unknown.Reported = false
	p := New(source{"a": waits, "b": running("ended", v1.PodFailed), "c": unknown, "d": running("new", v1.PodPending)})

	list, err := p.Allocated()
	if err != nil || len(list) != 2 || list[0].Name != "new" || list[1].Name != "waits" ||
		*list[1].Spec.Priority != 1 || list[1].Status.Phase != "" {
		t.Errorf("allocated are %v, %v", list, err)
	}
	if list, err := p.List(); err != nil || len(list) != 4 || *list[3].Spec.Priority != 2 ||
		list[3].Status.Phase != v1.PodRunning {
		t.Errorf("the pods are %v, %v", list, err)
	}
	for _, test := range []struct {
		name  string
		uid   types.UID
		found bool
	}{
		{"waits", "", true}, {"waits", "waits", true}, {"waits", "other", false}, {"ended", "", false},
		{"unknown", "", false}, {"nosuch", "", false},
	} {
		got, found := p.AllocatedByName("ns", test.name, test.uid)
		if found != test.found || found && (*got.Spec.Priority != 1 || got.Status.Phase != "") {
			t.Errorf("%s with UID %q: %v, %t", test.name, test.uid, got, found)
		}
	}
	if _, err := New(source{"x": {Err: errors.New("this is no pod")}}).Allocated(); err == nil {
		t.Error("a list that lacks what cannot be read is no error")
	}
}
