package pods

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

type bucket[M any] map[string]M

func (b bucket[M]) Get(key string) (M, bool) { m, ok := b[key]; return m, ok }
func (b bucket[M]) All() map[string]M        { return b }
func (b bucket[M]) Synced() bool             { return true }

func message(t *testing.T, source podsyncv1.PodSource, change func(*v1.Pod)) *podsyncv1.Pod {
	t.Helper()
	p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	change(&p)
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &podsyncv1.Pod{Pod: data, Source: source}
}

func TestByName(t *testing.T) {
	old, young := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	api := podsyncv1.PodSource_POD_SOURCE_API
	status, err := (&v1.PodStatus{Phase: v1.PodRunning}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	known := bucket[*podsyncv1.Pod]{
		// The same name again, while the one before still ends.
		"a": message(t, api, func(p *v1.Pod) { p.UID, p.CreationTimestamp, p.DeletionTimestamp = "a", young, &young }),
		"b": message(t, api, func(p *v1.Pod) { p.UID, p.CreationTimestamp = "b", old }),
		"c": message(t, api, func(p *v1.Pod) { p.UID, p.Name = "c", "other" }),
		"s": message(t, podsyncv1.PodSource_POD_SOURCE_FILE, func(p *v1.Pod) { p.UID, p.Name = "s", "static" }),
		"x": {Pod: []byte("this is no pod")},
	}
	p := New(known, bucket[*podsyncv1.PodStatus]{"b": {Status: status}})
	for range 2 { // once with the names looked up, once with them kept
		found, ok := p.ByName("ns", "p")
		if !ok || found.UID != "b" || found.Status.Phase != v1.PodRunning || !found.Reported {
			t.Fatalf("found %v", found)
		}
	}
	if _, ok := p.ByName("ns", "nosuch"); ok {
		t.Error("a pod that is not there is found")
	}
	if _, ok := p.ByName("other", "p"); ok {
		t.Error("a pod of another namespace is found")
	}
	found, ok := p.ByName("ns", "static")
	if !ok || !found.Is("its-mirror") || !found.Is("") {
		t.Errorf("a static pod is asked for by its mirror's UID: %v", found)
	}
	for uid, want := range map[types.UID]bool{"c": true, "": true, "b": false} {
		if other, ok := p.ByName("ns", "other"); !ok || other.Is(uid) != want {
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
