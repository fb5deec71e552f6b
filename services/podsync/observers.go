package podsync

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/assignment"
	"github.com/microlet/microlet/services/podsync/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/probes"
	"github.com/microlet/microlet/services/podsync/internal/publish"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// podObservers passes on what workers report of pods. The CRI gateway comes first, so that it knows a container before
// another service does, which may ask for it at once.
type podObservers struct {
	gateway      *containers.Index
	bus          *publish.Publisher
	assigner     *assignment.Assigner
	probeResults *probes.Store
}

var _ worker.Observer = (*podObservers)(nil)

// Pod implements worker.Observer.
func (o *podObservers) Pod(api *v1.Pod, from podsyncv1.PodSource, terminating bool) {
	o.gateway.SetPod(api)
	o.bus.Pod(api, from, terminating)
	o.assigner.Set(api)
}

// Status implements worker.Observer.
func (o *podObservers) Status(uid types.UID, state *pod.State, status *v1.PodStatus) {
	o.gateway.SetState(uid, state)
	o.bus.Status(uid, state, status)
}

// Forget implements worker.Observer.
func (o *podObservers) Forget(uid types.UID) {
	o.gateway.Forget(uid)
	o.bus.Forget(uid)
	o.assigner.Forget(uid)
	o.probeResults.Forget(uid)
}
