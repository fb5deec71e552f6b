package volumes

import (
	"context"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// persistentNFS are PersistentVolumes with nfs.
type persistentNFS struct {
	foreign childpool.Runner
	mounter string // ManagerOptions.NFSMounter
}

func (*persistentNFS) handles(v *cluster.ClaimedVolume) bool {
	return v.PV.Spec.NFS != nil && !v.IsBlock()
}

func (n *persistentNFS) setUp(ctx context.Context, s *Spec, v *cluster.ClaimedVolume, _ *selinuxlabel.Label) (
	Mounted, bool, error) {
	if err := validName(v.PV.Name); err != nil {
		return Mounted{}, false, err
	}
	is, err := setUpNFS(ctx, n.foreign, v.PV.Spec.NFS, nfsCall{
		ReadOnly: v.ReadOnly, Options: v.PV.Spec.MountOptions,
		Dir:     filepath.Join(filepath.Dir(filepath.Dir(s.Dir)), nfsName, v.PV.Name),
		Mounter: n.mounter,
	})
	return is, false, err
}
