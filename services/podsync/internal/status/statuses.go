package status

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/status/internal/mirror"
)

// Statuses sends the status of each pod to the object that shows it in the API: a static pod's to its mirror pod, every
// other pod's to the pod itself. Its methods may be called at the same time, and none of them waits.
type Statuses struct {
	mirrors *mirror.Manager
	pods    podStatuses
}

// podStatuses brings the status of a pod to its own object in the API; see manager.Manager.
type podStatuses interface {
	Set(p *v1.Pod, s v1.PodStatus)
	Terminated(p *v1.Pod, s v1.PodStatus)
	UpdateFromAPI(p *v1.Pod)
	Last(uid types.UID) (v1.PodStatus, bool)
	Delivered(uid types.UID) bool
	Forget(uid types.UID)
}

// Want announces a static pod, or a newer version of it.
func (s *Statuses) Want(p *v1.Pod) { s.mirrors.Want(p) }

// Set reports the newest status of a pod.
func (s *Statuses) Set(p *v1.Pod, status v1.PodStatus) {
	if s.mirrors.Wants(p.UID) {
		s.mirrors.Set(p, status)
		return
	}
	s.pods.Set(p, status)
}

// Terminated reports the last status of a pod that is being deleted, whose object may go now. The object of a static
// pod does not wait for that.
func (s *Statuses) Terminated(p *v1.Pod, status v1.PodStatus) {
	if s.mirrors.Wants(p.UID) {
		s.mirrors.Set(p, status)
		return
	}
	s.pods.Terminated(p, status)
}

// UpdateFromAPI takes the newest version of a pod. The API's version of a static pod comes with its mirror pod.
func (s *Statuses) UpdateFromAPI(p *v1.Pod) {
	if !s.mirrors.Wants(p.UID) {
		s.pods.UpdateFromAPI(p)
	}
}

// Last returns the status of a pod that was reported last, and whether there is one.
func (s *Statuses) Last(uid types.UID) (v1.PodStatus, bool) {
	if s.mirrors.Wants(uid) {
		return s.mirrors.Last(uid)
	}
	return s.pods.Last(uid)
}

// Delivered reports whether the API server has the newest status of the pod. It is true for a status that the API
// server cannot get, because there is no API server or no mirror pod.
func (s *Statuses) Delivered(uid types.UID) bool {
	if s.mirrors.Wants(uid) {
		return s.mirrors.Delivered(uid)
	}
	return s.pods.Delivered(uid)
}

// Forget drops what is kept of a pod of which nothing is left on the node.
func (s *Statuses) Forget(uid types.UID) {
	if s.mirrors.Wants(uid) {
		s.mirrors.Forget(uid)
		return
	}
	s.pods.Forget(uid)
}

// noStatuses is for a node without an API server.
type noStatuses struct{}

func (noStatuses) Set(*v1.Pod, v1.PodStatus)               {}
func (noStatuses) Terminated(*v1.Pod, v1.PodStatus)        {}
func (noStatuses) UpdateFromAPI(*v1.Pod)                   {}
func (noStatuses) Last(types.UID) (_ v1.PodStatus, _ bool) { return v1.PodStatus{}, false }
func (noStatuses) Delivered(types.UID) bool                { return true }
func (noStatuses) Forget(types.UID)                        {}
