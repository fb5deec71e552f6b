// Package absence tells whether the API server itself says that it has no object of a name.
//
// A status of 404 is no proof: a load balancer whose configuration is reloaded gives it too, and client-go makes the
// same kind of error of it. A decision that lasts needs the API server's own words.
package absence

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
