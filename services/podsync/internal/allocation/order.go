package allocation

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// turn says when a pod's resize is decided upon among others. The order is the kubelet's, whose comparison contradicts
// itself for some pods.
type turn struct {
	uid types.UID
	// grows: it asks for more CPU or memory than it has.
	grows      bool
	priority   int32
	guaranteed bool
	// since is when it began to wait; zero if nobody was told so yet, which comes last.
	since   time.Time
	created time.Time
}

// turnOf returns the turn of a pod that waits. The caller holds mu.
func (e *entry) turnOf() turn {
	t := turn{
		uid: e.wanted.UID, grows: grows(e.granted.Of(e.wanted), e.wanted), priority: corev1helpers.PodPriority(e.wanted),
		guaranteed: podutil.QOSClass(e.wanted) == v1.PodQOSGuaranteed, created: e.wanted.CreationTimestamp.Time,
	}
	if e.pending != nil {
		t.since = e.pending.LastTransitionTime.Time
	}
	return t
}

// grows reports whether p requests more than its granted version.
func grows(granted, p *v1.Pod) bool {
	has := resourcehelper.PodRequests(granted, resourcehelper.PodResourcesOptions{})
	wants := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	return wants.Cpu().Cmp(*has.Cpu()) > 0 || wants.Memory().Cmp(*has.Memory()) > 0
}

// compare orders first those that need no room, then by priority, then Guaranteed pods, then those that wait longest.
func (t turn) compare(other turn) int {
	return cmp.Or(
		before(!t.grows, !other.grows), cmp.Compare(other.priority, t.priority), before(t.guaranteed, other.guaranteed),
		before(!t.since.IsZero(), !other.since.IsZero()), t.since.Compare(other.since),
		t.created.Compare(other.created), cmp.Compare(t.uid, other.uid),
	)
}

// before orders what is true before what is not.
func before(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}
