package growth

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// change changes a claim's status.
type change func(*v1.PersistentVolumeClaimStatus)

func inProgress(s *v1.PersistentVolumeClaimStatus) {
	setStatus(s, v1.PersistentVolumeClaimNodeResizeInProgress)
}

// finished says that the claim has its new size.
func finished(size resource.Quantity) change {
	return func(s *v1.PersistentVolumeClaimStatus) {
		if s.Capacity == nil {
			s.Capacity = v1.ResourceList{}
		}
		s.Capacity[v1.ResourceStorage] = size
		delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			switch c.Type {
			case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing,
				v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError:
				return true
			}
			return false
		})
	}
}

// failed says why the node has failed, and whether the controller is to take over.
func failed(err error, infeasible bool) change {
	return func(s *v1.PersistentVolumeClaimStatus) {
		if infeasible {
			setStatus(s, v1.PersistentVolumeClaimNodeResizeInfeasible)
		}
		if slices.ContainsFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Status == v1.ConditionTrue
		}) {
			return
		}
		s.Conditions = append(slices.DeleteFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimNodeResizeError
		}), v1.PersistentVolumeClaimCondition{
			Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Message: fmt.Sprintf("failed to expand pvc with %v", err),
		})
	}
}

func setStatus(s *v1.PersistentVolumeClaimStatus, status v1.ClaimResourceStatus) {
	if s.AllocatedResourceStatuses == nil {
		s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
	}
	s.AllocatedResourceStatuses[v1.ResourceStorage] = status
}

// patch changes the claim's status. With sole it fails if the claim was changed since it was read.
func (a *attempt) patch(ctx context.Context, edit change, sole bool) error {
	next := a.Claim.DeepCopy()
	edit(&next.Status)
	patch, err := difference(a.Claim, next, sole)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	claim, err := a.o.Client.CoreV1().PersistentVolumeClaims(next.Namespace).Patch(ctx, next.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patchPVCStatus failed to patch PVC %q: %w", next.Name, err)
	}
	a.Claim = claim
	return nil
}

func difference(from, to *v1.PersistentVolumeClaim, sole bool) ([]byte, error) {
	before, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(to)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, from)
	if err != nil || !sole {
		return patch, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	fields["metadata"] = map[string]any{"resourceVersion": from.ResourceVersion}
	return json.Marshal(fields)
}
