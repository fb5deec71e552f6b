package allocation

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TestTheOrderOfThoseThatWait, from the first to the last.
func TestTheOrderOfThoseThatWait(t *testing.T) {
	waiting := func(name, has, wants string, change func(e *entry)) *entry {
		granted := pod.ResourcesOf(testPod(name, has))
		e := &entry{wanted: asking(testPod(name, has), wants), granted: &granted}
		change(e)
		return e
	}
	since := func(minute int) func(*entry) {
		return func(e *entry) {
			e.pending = &v1.PodCondition{LastTransitionTime: metav1.NewTime(time.Unix(int64(60*minute), 0))}
		}
	}
	guaranteed := func(e *entry) {
		r := &e.wanted.Spec.Containers[0].Resources
		r.Requests[v1.ResourceMemory] = resource.MustParse("1Gi")
		r.Limits = r.Requests
		held := pod.ResourcesOf(e.wanted)
		less := r.DeepCopy()
		less.Requests[v1.ResourceCPU], less.Limits = resource.MustParse("1m"), nil
		held.Containers["c"] = *less
		e.granted = &held
	}
	priority := func(p int32, and func(*entry)) func(*entry) {
		return func(e *entry) { and(e); e.wanted.Spec.Priority = &p }
	}
	none := func(*entry) {}
	inOrder := []*entry{
		waiting("shrinks", "2", "1", priority(-5, none)),
		waiting("shrinks, too", "2", "1", priority(-6, since(1))),
		waiting("important", "1", "2", priority(10, none)),
		waiting("guaranteed", "1", "2", guaranteed),
		waiting("old", "1", "2", since(1)),
		waiting("younger", "1", "2", since(2)),
		waiting("younger b", "1", "2", since(2)),
		waiting("new", "1", "2", none),
		waiting("new, created later", "1", "2", func(e *entry) { e.wanted.CreationTimestamp = metav1.Unix(1, 0) }),
		waiting("unimportant", "1", "2", priority(-1, since(1))),
	}
	var turns []turn
	var want []types.UID
	for _, e := range inOrder {
		turns, want = append(turns, e.turnOf()), append(want, e.wanted.UID)
	}
	for i, x := range turns {
		for j, y := range turns {
			if got := x.compare(y); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%s and %s: %d", x.uid, y.uid, got)
			}
		}
	}
	slices.Reverse(turns)
	slices.SortFunc(turns, turn.compare)
	var got []types.UID
	for _, x := range turns {
		got = append(got, x.uid)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
