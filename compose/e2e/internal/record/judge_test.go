package record

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://1"}},
		},
	}
	change(p)
	return p
}

func same(*corev1.Pod) {}

// TestUntouchedFindsEachTouch is the positive control of every scenario that asks Untouched.
func TestUntouchedFindsEachTouch(t *testing.T) {
	before := []*corev1.Pod{pod(same)}
	now := metav1.Now()
	for name, test := range map[string]struct {
		entry Entry
		bad   bool
	}{
		"another status": {Entry{Object: pod(func(p *corev1.Pod) { p.Status.Message = "x" })}, false},
		"another pod":    {Entry{Object: pod(func(p *corev1.Pod) { p.UID, p.Status.Conditions = "v", nil })}, false},
		"unready": {Entry{Object: pod(func(
			p *corev1.Pod) {
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		})}, true},
		"no condition": {Entry{Object: pod(func(p *corev1.Pod) { p.Status.Conditions = nil })}, true},
		"another container": {Entry{Object: pod(func(
			p *corev1.Pod) {
			p.Status.ContainerStatuses[0].ContainerID = "containerd://2"
		})}, true},
		"restarted":     {Entry{Object: pod(func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 1 })}, true},
		"no container":  {Entry{Object: pod(func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })}, true},
		"being deleted": {Entry{Object: pod(func(p *corev1.Pod) { p.DeletionTimestamp = &now })}, true},
		"deleted":       {Entry{Object: pod(same), Deleted: true}, true},
	} {
		if problems := Untouched(before, []Entry{test.entry}); (len(problems) > 0) != test.bad {
			t.Errorf("%s: problems %q", name, problems)
		}
	}
	if len(Untouched([]*corev1.Pod{pod(func(p *corev1.Pod) { p.Status.Conditions = nil })}, nil)) == 0 {
		t.Error("a pod that was not Ready to begin with passes")
	}
}

func TestNodeReadyFindsTheMoment(t *testing.T) {
	node := func(s corev1.ConditionStatus) Entry {
		return Entry{
			Object: &corev1.Node{
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s}}},
			},
		}
	}
	if p := NodeReady([]Entry{node(corev1.ConditionTrue), {Object: pod(same)}}); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
	if p := NodeReady([]Entry{node(corev1.ConditionTrue), node(corev1.ConditionUnknown), node(corev1.ConditionTrue),
		{Object: &corev1.Node{}}}); len(p) != 2 {
		t.Errorf("problems %q", p)
	}
}

func TestLeaseAgeIsThatOfTheLongestWait(t *testing.T) {
	lease := func(after time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: start.Add(after)}},
		}
	}
	entry := func(after time.Duration) Entry {
		return Entry{At: start.Add(after + time.Second), Object: lease(after)}
	}
	if got := LeaseAge(lease(0), []Entry{entry(5 * time.Second), entry(17 * time.Second)},
		start.Add(20*time.Second)); got != 13*time.Second {
		t.Errorf("in the middle: %v", got)
	}
	if got := LeaseAge(lease(0), []Entry{entry(5 * time.Second)}, start.Add(30*time.Second)); got != 25*time.Second {
		t.Errorf("at the end: %v", got)
	}
	if got := LeaseAge(lease(0), nil, start.Add(9*time.Second)); got != 9*time.Second {
		t.Errorf("without renewal: %v", got)
	}
}

func TestPodTimes(t *testing.T) {
	began, now := metav1.NewTime(start), metav1.Now()
	unready := func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }
	got := PodTimes([]Entry{
		{At: start, Object: pod(unready)},
		{At: start.Add(1), Object: pod(func(p *corev1.Pod) { unready(p); p.Status.StartTime = &began })},
		{At: start.Add(2), Object: pod(same)},
		{At: start.Add(3), Object: pod(same)},
		{At: start.Add(4), Object: pod(func(p *corev1.Pod) { p.DeletionTimestamp = &now })},
		{At: start.Add(5), Object: pod(func(p *corev1.Pod) { p.DeletionTimestamp = &now })},
		{At: start.Add(6), Object: pod(same), Deleted: true},
	})["u"]
	if want := (Times{Created: start, Ready: start.Add(2), Deleted: start.Add(4), Gone: start.Add(6)}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPercentile(t *testing.T) {
	if got := Percentile([]time.Duration{5, 1, 3, 2, 4}, 0.5); got != 3 {
		t.Errorf("median %v", got)
	}
	if got := Percentile(nil, 0.5); got != 0 {
		t.Errorf("of nothing %v", got)
	}
}
