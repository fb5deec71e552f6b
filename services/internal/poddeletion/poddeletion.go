// Package poddeletion makes sure that the API server has a pod no longer.
package poddeletion

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/absence"
)

// API is what deletion asks of the API server.
type API interface {
	GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// DeletePod deletes at once the pod of this UID, and no other of the same name.
	DeletePod(ctx context.Context, namespace, name string, uid types.UID) error
}

// Delete deletes the pod of this UID. It returns nil if there is none.
//
// A delete that finds no pod is not believed: the admission plugin NodeRestriction looks for the pod in a cache, which
// is empty when the API server has just started. Source: admitPod in plugin/pkg/admission/noderestriction.
func Delete(ctx context.Context, api API, namespace, name string, uid types.UID) error {
	refused := api.DeletePod(ctx, namespace, name, uid)
	switch {
	case apierrors.IsConflict(refused) && !apierrors.IsUnexpectedServerError(refused): // another pod has the name by now
		return nil
	case !apierrors.IsNotFound(refused):
		return refused
	}
	pod, err := api.GetPod(ctx, namespace, name)
	switch {
	case absence.Pod(err, name):
		return nil
	case err != nil:
		return errors.Join(refused, fmt.Errorf("get pod: %w", err))
	case pod.UID == "": // client-go takes any object of JSON for one
		return fmt.Errorf("get pod: the answer is no pod: %w", refused)
	case pod.UID == uid:
		return fmt.Errorf("the API server has the pod and does not find it to delete: %w", refused)
	}
	return nil
}
