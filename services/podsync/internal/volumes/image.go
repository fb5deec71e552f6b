package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// imageVolume is a volume that shows the files of an image. The runtime mounts it, and podsync does nothing for it.
// Source: KEP-4639.
type imageVolume struct{}

func (imageVolume) Name() string { return "kubernetes.io~image" }

func (imageVolume) Handles(v *v1.Volume) bool { return v.Image != nil }

func (imageVolume) Refreshes(*Spec) bool { return false }

func (imageVolume) Check(context.Context, *Spec) error { return nil }

func (imageVolume) Existing(*Spec) (Mounted, bool) {
	return Mounted{ReadOnly: true, SELinuxRelabel: true}, true
}

func (i imageVolume) SetUp(_ context.Context, s *Spec) (Mounted, error) {
	m, _ := i.Existing(s)
	return m, nil
}
