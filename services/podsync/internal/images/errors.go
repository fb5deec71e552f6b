package images

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	crierrors "k8s.io/cri-api/pkg/errors"
)

// The kubelet's reasons why a container waits for its image.
const (
	ReasonPull        = "ErrImagePull"
	ReasonBackOff     = "ImagePullBackOff"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
)

// Error says why an image is not present: what the container's waiting state shows.
type Error struct {
	// Reason is one of those above, or "RegistryUnavailable" or
	// "SignatureValidationFailed" when the runtime says so.
	Reason string
	// Message is the kubelet's for that reason.
	Message string
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// plain takes the code off an error of the runtime that says nothing: "rpc error:
// code = Unknown desc = …" says no more than what follows it.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unknown {
		return errors.New(s.Message())
	}
	return err
}

// pullError gives a failed pull the reason that the runtime put in front of its words,
// if it is one of CRI's own.
func pullError(image string, err error) *Error {
	for _, known := range []struct {
		prefix, message string
	}{
		{crierrors.ErrRegistryUnavailable.Error(), "image pull failed for %s because the registry is unavailable%s"},
		{crierrors.ErrSignatureValidationFailed.Error(),
			"image pull failed for %s because the signature validation failed%s"},
	} {
		if rest, ok := strings.CutPrefix(err.Error(), known.prefix); ok {
			return &Error{known.prefix, fmt.Sprintf(known.message, image, rest)}
		}
	}
	return &Error{ReasonPull, err.Error()}
}
