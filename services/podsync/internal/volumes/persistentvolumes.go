package volumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// persistentVolumes set up the PersistentVolumes of one kind, as a Plugin does volumes that are a pod's own.
type persistentVolumes interface {
	// handles reports whether the volume is of this kind.
	handles(v *cluster.ClaimedVolume) bool
	// setUp mounts or maps the volume, or brings it up to date. With republish it is to be called again from time to
	// time. Its errors are those of errorOfPV.
	setUp(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, label *selinuxlabel.Label) (
		is Mounted, republish bool, err error)
}

// deviceVolumes are those of a kind that may be block devices. What is in them grows with their claims.
type deviceVolumes interface {
	persistentVolumes
	// isElsewhere reports whether the folder of a pod other than this one has the volume. A kubelet that ran before this
	// process has left no note.
	isElsewhere(pv string, own types.UID) (bool, error)
	// globalMap is the folder of the mappings of a block volume.
	globalMap(pv string) string
	// grow grows what is in a volume of the pod; at is where it is mounted.
	grow(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, at string, size resource.Quantity) error
}

// kindOf returns nil for a kind that is not built.
func (c *claim) kindOf(v *cluster.ClaimedVolume) persistentVolumes {
	for _, kind := range c.kinds {
		if kind.handles(v) {
			return kind
		}
	}
	return nil
}

// notBuilt says why there is no PersistentVolume of a kind, and what to use instead.
func notBuilt(pv *v1.PersistentVolume) error {
	kind := fields.VolumeKind(pv.Spec.PersistentVolumeSource)
	if instead := fields.Instead(kind); instead != "" {
		return fmt.Errorf("PersistentVolume %s has spec.%s, which is not built: use %s", pv.Name, kind, instead)
	}
	return fmt.Errorf("PersistentVolume %s has spec.%s, which is not built: use one with csi, local, nfs or hostPath",
		pv.Name, kind)
}
