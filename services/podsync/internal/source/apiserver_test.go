package source

import (
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

type told []string

func (t *told) SetPod(p *v1.Pod, _ podsyncv1.PodSource) { *t = append(*t, "set "+string(p.UID)) }
func (t *told) RemovePod(uid types.UID, _ podsyncv1.PodSource) {
	*t = append(*t, "remove "+string(uid))
}
func (t *told) SourceSynced(podsyncv1.PodSource) { *t = append(*t, "synced") }

func named(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-0", UID: uid}}
}

// TestAPodMadeAnewEndsTheOldOne: a StatefulSet's pod keeps its name, and the informer,
// which goes by names, shows its successor as an update.
func TestAPodMadeAnewEndsTheOldOne(t *testing.T) {
	var got told
	h := NewAPIServer(nil, "node", slog.New(slog.DiscardHandler)).handler(&got)
	h.OnAdd(named("1"), true)
	h.OnUpdate(named("1"), named("1"))
	h.OnUpdate(named("1"), named("2"))
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/db-0", Obj: named("2")})
	if want := []string{"set 1", "set 1", "remove 1", "set 2", "remove 2"}; !slices.Equal(got, want) {
		t.Fatalf("told %q, want %q", got, want)
	}
}

func TestMirrorsAndBadUIDsStayOut(t *testing.T) {
	var got told
	h := NewAPIServer(nil, "node", slog.New(slog.DiscardHandler)).handler(&got)
	mirror := named("1")
	mirror.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
	h.OnAdd(mirror, true)
	h.OnAdd(named("../2"), true)
	h.OnAdd(named("a.>"), true)
	if len(got) != 0 {
		t.Fatalf("told %q", got)
	}
}
