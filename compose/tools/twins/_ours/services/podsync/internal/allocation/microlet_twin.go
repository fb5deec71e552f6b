package allocation

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TwinOrder is less than 0 if the resize of x is decided upon before that of y. same: nothing of them decides but their
// ages and UIDs, or neither grows.
func TwinOrder(x, xGranted *v1.Pod, xPending *v1.PodCondition, y, yGranted *v1.Pod,
	yPending *v1.PodCondition) (order int, same bool) {
	turnOf := func(p, has *v1.Pod, pending *v1.PodCondition) turn {
		r := pod.ResourcesOf(has)
		return (&entry{wanted: p, granted: &r, pending: pending}).turnOf()
	}
	a, b := turnOf(x, xGranted, xPending), turnOf(y, yGranted, yPending)
	alike := b
	alike.uid, alike.created = a.uid, a.created
	return a.compare(b), !a.grows && !b.grows || a.compare(alike) == 0
}
