package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// takeLabel returns the SELinux label with which to mount a volume for its pod. Only CSI drivers mount with one; pv is
// nil if it is no PersistentVolume.
func takeLabel(ctx context.Context, labels *selinuxlabel.Labels, csi CSI, s *Spec, pv *v1.PersistentVolume) (
	selinuxlabel.Label, error) {
	v := &selinuxlabel.Volume{Name: s.Volume.Name, PV: pv}
	switch {
	case pv != nil && pv.Spec.CSI != nil:
		v.Driver = pv.Spec.CSI.Driver
	case pv == nil && s.Volume.CSI != nil:
		v.Driver = s.Volume.CSI.Driver
	}
	if v.Driver != "" {
		var err error
		if v.Mountable, err = csi.MountsWithLabel(ctx, v.Driver); err != nil {
			return selinuxlabel.Label{}, err
		}
	}
	return labels.Take(s.Pod, v)
}

// noteLabel counts the label of a volume that is no PersistentVolume in the metrics. The volume is mounted with none.
func (m *Manager) noteLabel(ctx context.Context, plugin Plugin, s *Spec) error {
	if _, claimed := plugin.(*claim); claimed || !m.opts.Labels.Enabled() {
		return nil
	}
	_, err := takeLabel(ctx, m.opts.Labels, m.opts.CSI, s, nil)
	return err
}

// label returns the label of a claim, and nil on a node without SELinux.
func (c *claim) label(ctx context.Context, s *Spec, found *cluster.ClaimedVolume) (*selinuxlabel.Label, error) {
	if !c.labels.Enabled() {
		return nil, nil
	}
	label, err := takeLabel(ctx, c.labels, c.csi, s, found.PV)
	return &label, err
}
