package status

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/status/internal/mirror"
)

// objects is the manager of statuses. It knows the last status of every pod and has delivered none.
type objects struct{ *diary }

func (o objects) Set(p *v1.Pod, s v1.PodStatus) {
	o.write("set " + string(p.UID) + " " + string(s.Phase))
}
func (o objects) Terminated(p *v1.Pod, s v1.PodStatus) {
	o.write("terminated " + string(p.UID) + " " + string(s.Phase))
}
func (o objects) UpdateFromAPI(p *v1.Pod) { o.write("update " + string(p.UID)) }
func (objects) Last(types.UID) (_ v1.PodStatus, _ bool) {
	return v1.PodStatus{Phase: v1.PodPending}, true
}
func (objects) Delivered(types.UID) bool { return false }
func (o objects) Forget(uid types.UID)   { o.write("forget " + string(uid)) }

func newStatuses(t *testing.T, pods podStatuses) *Statuses {
	t.Helper()
	m, err := mirror.New(mirror.Options{NodeName: "n", Statuses: noStatuses{}, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return &Statuses{mirrors: m, pods: pods}
}

func report(s *Statuses, p *v1.Pod) {
	s.UpdateFromAPI(p)
	s.Set(p, v1.PodStatus{Phase: v1.PodRunning})
	s.Terminated(p, v1.PodStatus{Phase: v1.PodFailed})
}

func TestAStatusGoesToTheObjectThatShowsIt(t *testing.T) {
	d := &diary{}
	s := newStatuses(t, objects{d})
	ordinary := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "ordinary"}}
	static := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "static"}}
	s.Want(static)
	for _, p := range []*v1.Pod{ordinary, static} {
		report(s, p)
	}
	if last, ok := s.Last("ordinary"); !ok || last.Phase != v1.PodPending {
		t.Errorf("the last status of an ordinary pod is %v, %v", last, ok)
	}
	if last, ok := s.Last("static"); !ok || last.Phase != v1.PodFailed {
		t.Errorf("the last status of a static pod is %v, %v", last, ok)
	}
	if s.Delivered("ordinary") || !s.Delivered("static") {
		t.Error("a status without a mirror pod is waited for, or one of an ordinary pod is not")
	}
	s.Forget("ordinary")
	s.Forget("static")
	if p, _ := s.mirrors.Get("static"); p != nil {
		t.Error("the static pod is not forgotten")
	}
	want := []string{"update ordinary", "set ordinary Running", "terminated ordinary Failed", "forget ordinary"}
	if !slices.Equal(d.lines, want) {
		t.Errorf("the manager of statuses was called with %q, want %q", d.lines, want)
	}
}

func TestStatusesWithoutAnAPIServer(t *testing.T) {
	s := newStatuses(t, noStatuses{})
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "ordinary"}}
	report(s, p)
	if last, ok := s.Last(p.UID); ok || !s.Delivered(p.UID) {
		t.Errorf("the last status is %v, or is waited for", last)
	}
	s.Forget(p.UID)
}
