package sources

import (
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// calls writes down what a source calls.
type calls struct {
	lines []string
	last  map[types.UID]*v1.Pod
}

func (t *calls) SetPod(p *v1.Pod, _ podsyncv1.PodSource) {
	if t.last == nil {
		t.last = map[types.UID]*v1.Pod{}
	}
	t.last[p.UID] = p
	t.lines = append(t.lines, "set "+string(p.UID))
}
func (t *calls) RemovePod(uid types.UID, _ podsyncv1.PodSource) {
	t.lines = append(t.lines, "remove "+string(uid))
}
func (t *calls) SourceSynced(podsyncv1.PodSource) { t.lines = append(t.lines, "synced") }
func (t *calls) SetMirror(p *v1.Pod)              { t.lines = append(t.lines, "mirror "+string(p.UID)) }
func (t *calls) RemoveMirror(p *v1.Pod)           { t.lines = append(t.lines, "no mirror "+string(p.UID)) }
func (t *calls) MirrorsSynced()                   { t.lines = append(t.lines, "mirrors synced") }
func (*calls) Source(types.NamespacedName) string { return "" }

func (t *calls) want(test *testing.T, lines ...string) {
	test.Helper()
	if !slices.Equal(t.lines, lines) {
		test.Fatalf("reported %q, want %q", t.lines, lines)
	}
	t.lines = nil
}

func named(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-0", UID: uid}}
}

func mirrorOf(uid types.UID) *v1.Pod {
	p := named(uid)
	p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
	return p
}

func newStore() (*apiStore, *calls) {
	t := &calls{}
	return NewAPIServer(nil, "node", t, slog.New(slog.DiscardHandler)).store(t), t
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestARecreatedPodEndsTheOldOne: a StatefulSet's pod keeps its name, and may be created again unobserved.
func TestARecreatedPodEndsTheOldOne(t *testing.T) {
	s, got := newStore()
	do(t, s.Replace([]any{named("1")}, "1"))
	got.want(t, "set 1", "mirrors synced", "synced")
	do(t, s.Replace([]any{named("2")}, "5"))
	got.want(t, "remove 1", "set 2")
	do(t, s.Delete(named("2")))
	do(t, s.Add(named("3")))
	got.want(t, "remove 2", "set 3")
	do(t, s.Delete(named("2"))) // reported twice
	got.want(t)
}

func TestSeenStaysTheSame(t *testing.T) {
	s, got := newStore()
	do(t, s.Replace([]any{named("1")}, "1"))
	first := got.last["1"].Annotations[manifest.SeenAnnotation]
	do(t, s.Update(named("1")))
	if now := got.last["1"].Annotations; now[manifest.SeenAnnotation] != first ||
		now[podutil.ConfigSourceAnnotation] != "api" || first == "" {
		t.Errorf("annotations are %v, seen first was %s", now, first)
	}
}

func TestMirrorsAndBadUIDsStayOut(t *testing.T) {
	s, got := newStore()
	do(t, s.Replace([]any{mirrorOf("1"), named("../2"), named("a.>")}, "1"))
	got.want(t, "mirror 1", "mirrors synced", "synced")
	do(t, s.Delete(mirrorOf("1")))
	got.want(t, "no mirror 1")
}
