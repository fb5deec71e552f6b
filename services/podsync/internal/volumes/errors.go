package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// Usage is how full a volume is, in bytes and inodes.
type Usage = csivolume.Usage

// ErrNotMeasured is returned for a volume whose driver does not measure it.
var ErrNotMeasured = csivolume.ErrNotMeasured

// LimitExceeded is the error of a volume that is more than the node may have attached.
type LimitExceeded = csivolume.LimitExceeded

// Steps of the kubelet, by which its Events begin.
const (
	stepSetUp        = "MountVolume.SetUp failed"
	stepNewMounter   = "MountVolume.NewMounter initialization failed"
	stepMountOptions = "MountVolume.MountOptionSupport check failed"
	stepMountDevice  = "MountVolume.MountDevice failed"
	stepExpand       = "MountVolume.Setup failed while expanding volume"
	stepFindMapper   = "MapVolume.FindMapperPluginBySpec failed"
	stepSetUpDevice  = "MapVolume.SetUpDevice failed"
	stepExpandDevice = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
)

// Steps before those, which the kubelet's Event names by lists of volumes: the claim cannot be processed, the volume is
// not attached, and it is still mounted otherwise.
const (
	stepProcess    = "failed to process volumes"
	StepUnattached = "unattached volumes"
	stepUnmounted  = "unmounted volumes"
)

// Error is a volume that could not be set up. Its text is that of the kubelet's Event.
type Error struct {
	// Volume is the pod's name of the volume. PV is the name of the PersistentVolume, if the step is about one.
	Volume, PV string
	// Step is what failed. Default: stepSetUp.
	Step string
	Err  error
}

func (e *Error) Error() string {
	switch e.Step {
	case stepProcess, StepUnattached, stepUnmounted:
		listed := func(step string) string {
			if e.Step == step {
				return e.Volume
			}
			return ""
		}
		return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], "+
			"failed to process volumes=[%s]: %v", e.Volume, listed(StepUnattached), listed(stepProcess), e.Err)
	}
	return fmt.Sprintf("%s for volume %q : %v", cmp.Or(e.Step, stepSetUp), cmp.Or(e.PV, e.Volume), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Problem is what an explanation of the pod, which names the volume, says: the cause, after the step if the volume's
// plugin has named one.
func (e *Error) Problem() string {
	if e.Step != "" {
		return e.Error()
	}
	return e.Err.Error()
}

// IsMapping reports whether it is an error of mapping a device, whose event has a reason of its own.
func (e *Error) IsMapping() bool { return strings.HasPrefix(e.Step, "MapVolume.") }

// IsAttaching reports whether it is an error of attaching a volume, whose event has a reason of its own.
func (e *Error) IsAttaching() bool { return strings.HasPrefix(e.Step, "AttachVolume.") }

// IsUnattached reports whether the volume waits for its attachment to the node.
func (e *Error) IsUnattached() bool { return e.Step == StepUnattached || e.ExceedsLimit() }

// ExceedsLimit reports whether the volume is not attached because the node has no room for another one of its driver.
func (e *Error) ExceedsLimit() bool {
	var limit *csivolume.LimitExceeded
	return errors.As(e.Err, &limit)
}

// errorOf returns the error of a volume. A plugin that returns an *Error leaves the name of the volume out.
func errorOf(volume string, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Err: err}
	}
	e.Volume = volume
	return e
}

// errorOfPV returns the error of a PersistentVolume. Its kind leaves the name out, and a step that is stepSetUp.
func errorOfPV(pv string, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Step: stepSetUp, Err: err}
	}
	e.PV = pv
	return e
}

// errorOfCSI names the step at which a CSI volume has failed.
func errorOfCSI(err error) error {
	var failed *csivolume.Error
	var waits *csivolume.NotAttached
	var other *csivolume.OtherLabel
	switch {
	case errors.As(err, &failed):
		return &Error{Step: failed.Step, Err: failed.Err}
	case errors.As(err, &waits):
		return &Error{Step: StepUnattached, Err: waits.Err}
	case errors.As(err, &other):
		return &Error{Step: stepUnmounted, Err: other}
	}
	return err
}

// errorOfClaim is the error of a claim that cannot be processed; nil of none.
func errorOfClaim(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Step: stepProcess, Err: err}
}
