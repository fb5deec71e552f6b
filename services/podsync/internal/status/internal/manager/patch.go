package manager

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// merged is the status to write: ours, with what others wrote into that of the API, and with what the API never lets a
// client withdraw.
func merged(p *v1.Pod, want *v1.PodStatus) *v1.PodStatus {
	api, s := &p.Status, want.DeepCopy()
	s.ResourceClaimStatuses = api.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = api.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses = api.NodeAllocatableResourceClaimStatuses
	s.NominatedNodeName = api.NominatedNodeName
	keepEnds(p, api, s)

	// A pod is reported to have ended only when nothing of it runs: others take that as leave to use
	// what it held.
	held := podutil.IsTerminal(want.Phase) && !podutil.IsTerminal(api.Phase) && anyRunning(want)
	if held {
		s.Phase, s.Reason, s.Message = api.Phase, api.Reason, api.Message
	}

	s.Conditions = nil
	for _, c := range api.Conditions {
		if !status.IsOwnedCondition(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	for _, c := range want.Conditions {
		switch {
		case status.IsOwnedCondition(c.Type):
			podutil.SetCondition(s, c)
		case c.Type == v1.DisruptionTarget && !held && podutil.IsTerminal(s.Phase) && !podutil.IsTerminal(api.Phase):
			podutil.SetCondition(s, c)
		}
	}
	return s
}

func anyRunning(s *v1.PodStatus) bool {
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses,
		s.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list, func(c v1.ContainerStatus) bool { return c.State.Running != nil }) {
			return true
		}
	}
	return false
}

// statusPatch returns the patch from the API's status to the wanted one. The apiserver refuses it for another pod of
// the same name, because it has the UID. A nil patch means that there is nothing to write.
func statusPatch(uid types.UID, from, to *v1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(v1.Pod{Status: *from})
	if err != nil {
		return nil, fmt.Errorf("encode the present status: %w", err)
	}
	after, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: *to})
	if err != nil {
		return nil, fmt.Errorf("encode the new status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses: %w", err)
	}
	nothing, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}})
	if err != nil {
		return nil, fmt.Errorf("encode the pod's uid: %w", err)
	}
	if bytes.Equal(patch, nothing) {
		return nil, nil
	}
	return patch, nil
}
