// Package absence finds out whether the API server itself says that it has no object of a name, or that it has deleted
// a pod.
//
// A status of 404 is no proof: a load balancer that reloads its configuration returns it too, and client-go makes the
// same kind of error of it. Nor is a status of 200. A decision that lasts needs the API server's own words.
package absence

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Of reports whether an error is a Status of the API that says that there is no object of this resource and name.
func Of(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == resource && details.Name == name
}

// Pod reports whether an error is a Status of the API that says that there is no pod of this name.
func Pod(err error, name string) bool { return Of(err, "pods", name) }

// Deleted reports whether the answer to a deletion is the API server's, of this pod: the pod, or a Status that says
// that it succeeded.
func Deleted(answer runtime.Object, name string, uid types.UID) bool {
	switch o := answer.(type) {
	case *v1.Pod:
		return o.Name == name && o.UID == uid
	case *metav1.Status:
		d := o.Details
		return o.Status == metav1.StatusSuccess && d != nil && (d.Kind == "pods" || d.Kind == "Pod") && d.Name == name &&
			(d.UID == uid || d.UID == "")
	default:
		return false
	}
}
