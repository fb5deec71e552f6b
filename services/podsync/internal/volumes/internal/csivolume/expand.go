package csivolume

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/growth"
)

// Expand has the driver grow what is in a volume that the pod has. Its errors are those of package growth.
func (vs *Volumes) Expand(ctx context.Context, v *Volume, size resource.Quantity) error {
	s, err := vs.begin(ctx, v)
	if err != nil {
		return err
	}
	if !s.can.Expands() {
		return growth.As(growth.ErrNotSupported,
			fmt.Errorf("NodeExpand is not supported by the CSI driver %s", s.device.driver))
	}
	source := s.PV.Spec.CSI
	secrets, err := s.secrets(ctx, "NodeExpandSecretRef", source.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	locked, err := vs.locks.lock(ctx, s.device)
	if err != nil {
		return err
	}
	defer locked.release()
	request := &csi.NodeExpandVolumeRequest{
		VolumeId: s.device.handle, VolumePath: s.target,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: s.capability(source.FSType), Secrets: secrets,
	}
	if s.stages() {
		request.StagingTargetPath = s.staging()
	}
	return expansionError(locked.call(ctx, func(ctx context.Context) error { return s.driver.Expand(ctx, request) }))
}

// expansionError says what is known of a call that has failed. A volume that cannot grow while a pod has it is a failed
// precondition.
// https://github.com/container-storage-interface/spec/blob/master/spec.md#controllerexpandvolume-errors
func expansionError(err error) error {
	if err == nil {
		return nil
	}
	failed := fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return growth.As(growth.ErrInUse, failed)
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return growth.As(growth.ErrInfeasible, failed)
	}
	if csidriver.Final(err) {
		return growth.As(growth.ErrFinal, failed)
	}
	return failed
}
