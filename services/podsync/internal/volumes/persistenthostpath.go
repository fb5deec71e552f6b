package volumes

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// persistentHostPath are PersistentVolumes with hostPath.
type persistentHostPath struct {
	foreign childpool.Runner
	private func(p *v1.Pod) string // see ManagerOptions.Private
}

func (*persistentHostPath) handles(v *cluster.ClaimedVolume) bool {
	return v.PV.Spec.HostPath != nil
}

// setUp mounts nothing: the container gets the path itself.
func (h *persistentHostPath) setUp(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, _ *selinuxlabel.Label) (
	Mounted, bool, error) {
	source := v.PV.Spec.HostPath
	switch {
	case v.IsBlock():
		return Mounted{}, false, &Error{Step: stepFindMapper,
			Err: errors.New("a hostPath cannot be mapped as a device: use a local PersistentVolume")}
	case len(v.PV.Spec.MountOptions) > 0:
		return Mounted{}, false, &Error{Step: stepMountOptions,
			Err: errors.New("mount options are not supported for this volume type")}
	case climbs(source.Path):
		return Mounted{}, false, fmt.Errorf("invalid HostPath `%s`: must not contain '..'", source.Path)
	}
	call := hostPathCall{Path: source.Path, Private: h.private(s.Pod)}
	if source.Type != nil {
		call.Type = *source.Type
	}
	_, err := checkHostPath.Do(ctx, h.foreign, call.Path, call)
	return Mounted{HostPath: source.Path, ReadOnly: v.ReadOnly}, false, err
}
