package csivolume

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

// InUse keeps volumes attached to the node while it uses them; see inuse.List.
type InUse interface {
	// Set says which volumes are in use, by their unique names.
	Set(names map[string]bool)
	// Add says that these are among them, as long as not all are known.
	Add(ctx context.Context, names map[string]bool) error
	// Await waits until one that is in use is attached, and cannot be detached.
	Await(ctx context.Context, name string) error
}

// NotAttached is the error of a volume that waits for its attachment.
type NotAttached struct{ Err error }

func (e *NotAttached) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotAttached) Unwrap() error { return e.Err }

// LimitExceeded is the error of a volume that is not attached because the node has no room for another one of its
// driver.
type LimitExceeded struct{ Err error }

func (e *LimitExceeded) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LimitExceeded) Unwrap() error { return e.Err }

// limitTimeout is how long it may take to find out that a node has no room.
const limitTimeout = 10 * time.Second

// inUseRetry is the delay after the folders could not be read.
const inUseRetry = time.Second

// uniqueName is what the Node's status calls the volume.
func (d device) uniqueName() string { return "kubernetes.io/csi/" + d.driver + "^" + d.handle }

// TellInUse says which volumes must not be detached, at the start and after each change, until ctx ends.
func (vs *Volumes) TellInUse(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if err := vs.tellInUse(ctx); err != nil {
			vs.o.Log.Warn("volumes in use are not known, and the list stays as it is", logkey.Err, err, logkey.Delay,
				inUseRetry)
			again = time.After(inUseRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-vs.inUseChanged:
		case <-again:
		}
	}
}

// tellInUse lists the volumes that pods have or want, and those that are staged. They are the ones that must stay
// attached.
func (vs *Volumes) tellInUse(ctx context.Context) error {
	devices, err := vs.used()
	if err != nil {
		return err
	}
	all, err := vs.mayBeStaged()
	if err != nil {
		return err
	}
	var unknown []error
	for _, v := range all {
		switch staged, err := v.isUnknown(); {
		case err != nil:
			return err
		case staged:
			unknown = append(unknown, v.err)
		case v.err == nil:
			devices[v.device] = true
		}
	}
	attachable := vs.attachableDrivers(ctx, devices)
	names := map[string]bool{}
	for d := range devices {
		if attachable[d.driver] {
			names[d.uniqueName()] = true
		}
	}
	vs.noteUnknown(errors.Join(unknown...))
	if len(unknown) > 0 {
		// An unknown one is among those that were listed. The others do not wait for it.
		return vs.o.InUse.Add(ctx, names)
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	// What pods have come to want meanwhile is not to be taken off the list by what was read before.
	for d := range vs.holders {
		if vs.attachable[d.driver] {
			names[d.uniqueName()] = true
		}
	}
	vs.o.InUse.Set(names)
	return nil
}

// isUnknown reports whether something is staged that belongs to no known volume. Where nothing is mounted, a crash has
// left the file that cannot be read.
func (v *stagedVolume) isUnknown() (bool, error) {
	if v.err == nil || errors.Is(v.err, fs.ErrNotExist) {
		return false, nil
	}
	return mountlist.HasBelow(v.path)
}

// noteUnknown logs once which staged volumes are unknown.
func (vs *Volumes) noteUnknown(err error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != vs.unknown && text != "" {
		vs.o.Log.Warn("staged volumes are unknown, and no volume is taken off those in use until they are gone", logkey.Err,
			text)
	}
	vs.unknown = text
}

// attachableDrivers are the drivers whose volumes are attached. An unknown one counts: to list a volume that no
// controller attaches does no harm.
func (vs *Volumes) attachableDrivers(ctx context.Context, devices map[device]bool) map[string]bool {
	out := map[string]bool{}
	for d := range devices {
		if _, known := out[d.driver]; known {
			continue
		}
		vs.mu.Lock()
		is, known := vs.attachable[d.driver]
		vs.mu.Unlock()
		if !known {
			object, err := vs.o.API.CSIDriver(ctx, d.driver)
			is = err != nil || attachRequired(object)
		}
		out[d.driver] = is
	}
	return out
}

// awaitAttached waits until the volume, which the pod holds already, is attached and stays so.
func (s *setup) awaitAttached(ctx context.Context) error {
	if !s.attachable() {
		return nil
	}
	err := s.vs.o.InUse.Await(ctx, s.device.uniqueName())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded) && s.exceedsLimit(ctx):
		return &LimitExceeded{err}
	}
	return &NotAttached{err}
}

// exceedsLimit reports whether the driver's controller refuses the volume because the node has no room for it. As in
// the kubelet, that counts only for a driver whose limit may change (nodeAllocatableUpdatePeriodSeconds, KEP-4876). The
// driver is then asked for its limit at once, so that the scheduler reads it in the CSINode.
func (s *setup) exceedsLimit(ctx context.Context) bool {
	if s.object == nil || s.object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limitTimeout)
	defer cancel()
	attachment, err := s.vs.o.API.VolumeAttachment(ctx, attachmentName(s.device, s.vs.o.Node))
	if err != nil || attachment.Status.Attached {
		return false
	}
	refused := attachment.Status.AttachError
	if refused == nil || refused.ErrorCode == nil || codes.Code(*refused.ErrorCode) != codes.ResourceExhausted {
		return false
	}
	if err := s.vs.o.Drivers.Refresh(ctx, s.device.driver); err != nil {
		s.vs.o.Log.Warn("CSINode does not have what a CSI driver now says of the node", "driver", s.device.driver,
			logkey.Err, err)
	}
	return true
}

// changeInUse has TellInUse look again.
func (vs *Volumes) changeInUse() {
	select {
	case vs.inUseChanged <- struct{}{}:
	default:
	}
}
