package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// OtherLabel is the error of a volume that is still mounted with the SELinux label of another pod. Its text is the
// kubelet's.
type OtherLabel struct{ volume string }

func (e *OtherLabel) Error() string {
	return fmt.Sprintf("waiting for unmount of volume %q, because it is already mounted to a different pod with a "+
		"different SELinux label", e.volume)
}

// MountsWithLabel reports whether a driver mounts volumes with an SELinux label (seLinuxMount).
func (vs *Volumes) MountsWithLabel(ctx context.Context, driver string) (bool, error) {
	object, err := vs.o.API.CSIDriver(ctx, driver)
	return object != nil && ptrIs(object.Spec.SELinuxMount), err
}

// settleLabel decides with which SELinux label the volume is mounted for the pod. The kernel gives a file system one
// label for all of its mounts, so what is mounted counts, by the files vol_data.json:
//
//   - A pod that has the volume, or may have it, keeps it as it is.
//   - Beside pods that have it with another label, the pod waits.
//   - Beside pods that have it without a label, the pod has none either, and the runtime labels the files.
//   - A volume that is staged with another label, and that no pod has, is staged again.
//
// The volume is locked.
func (s *setup) settleLabel(ctx context.Context) error {
	if !s.vs.o.SELinux || s.PV == nil || s.isBlock() {
		return nil
	}
	if own, err := load(filepath.Dir(s.target)); err == nil {
		s.label = own.Label
		return nil
	}
	s.label = s.Label
	others, err := s.vs.labelsOf(s.device, s.Pod.UID)
	if err != nil {
		return &Error{s.first(), err}
	}
	for _, other := range others {
		switch other {
		case s.Label:
		case "":
			s.label = ""
		default:
			return &OtherLabel{s.device.uniqueName()}
		}
	}
	if len(others) > 0 || !s.stages() {
		return nil
	}
	return s.unstageOtherLabel(ctx)
}

// unstageOtherLabel unstages the volume, which no pod has, if it is staged with another label or with an
// unknown one.
func (s *setup) unstageOtherLabel(ctx context.Context) error {
	staged, err := load(s.dir())
	if errors.Is(err, fs.ErrNotExist) || err == nil && staged.Label == s.label {
		return nil
	}
	v := stagedVolume{device: s.device, dir: s.dir(), path: s.staging()}
	if err := s.vs.unstageBy(ctx, s.locked, v, s.driver); err != nil {
		return &Error{s.steps().stage, err}
	}
	return nil
}

// labelsOf lists the SELinux labels with which pods have a volume, or may have it, but for one pod.
func (vs *Volumes) labelsOf(d device, but types.UID) ([]string, error) {
	pods, err := entries(vs.layout.pods())
	if err != nil {
		return nil, err
	}
	var labels []string
	for _, pod := range slices.DeleteFunc(pods, func(uid string) bool { return uid == string(but) }) {
		dir := vs.layout.volumes(types.UID(pod))
		names, err := entries(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := load(filepath.Join(dir, name))
			if err == nil && !data.inline() && data.device() == d {
				labels = append(labels, data.Label)
			}
		}
	}
	return labels, nil
}

// mountOptions are those of the PersistentVolume, and the SELinux label. It is in quotes, since it may have commas.
func (s *setup) mountOptions() []string {
	options := s.PV.Spec.MountOptions
	if s.label != "" {
		options = append(slices.Clone(options), fmt.Sprintf("context=%q", s.label))
	}
	return options
}
