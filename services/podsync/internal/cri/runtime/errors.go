package runtime

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	crierrors "k8s.io/cri-api/pkg/errors"
)

// CreateError says that a container could not be created. The kubelet's reason for it
// is CreateContainerError.
type CreateError struct {
	Container string
	Err       error
}

func (e *CreateError) Error() string {
	return fmt.Sprintf("create container %q: %v", e.Container, e.Err)
}
func (e *CreateError) Unwrap() error { return e.Err }

// StartError says that a container was created but could not be started. The kubelet's
// reason for it is RunContainerError.
type StartError struct {
	Container string
	// ID of the created container, which the runtime keeps until it is removed.
	ID  string
	Err error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start container %q (%s): %v", e.Container, e.ID, e.Err)
}
func (e *StartError) Unwrap() error { return e.Err }

// RefusedError says that a container was created as what it may not run as, and was not started. The kubelet's reason
// for it is CreateContainerConfigError.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return e.Message }

// Message returns the runtime's own words of an error, as the kubelet shows them in
// events and in a waiting container's message, without the code and our wrapping. An
// error that is not the runtime's is returned whole.
func Message(err error) string {
	if err == nil {
		return ""
	}
	var wire interface{ GRPCStatus() *status.Status }
	if errors.As(err, &wire) {
		return wire.GRPCStatus().Message()
	}
	return err.Error()
}

// IsNotFound says that the runtime does not have what was asked for.
func IsNotFound(err error) bool { return err != nil && crierrors.IsNotFound(err) }

// IsUnavailable says that the runtime could not be reached, or went away during the call.
func IsUnavailable(err error) bool { return status.Code(err) == codes.Unavailable }

// IsUnimplemented says that the runtime does not know the call.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
