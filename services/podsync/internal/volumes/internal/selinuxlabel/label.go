package selinuxlabel

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Volume is one that a pod is to get.
type Volume struct {
	// Name is that in the pod.
	Name string
	// PV is nil if it is no PersistentVolume.
	PV *v1.PersistentVolume
	// Driver is the name of its CSI driver. Mountable says that the driver mounts with a label.
	Driver    string
	Mountable bool
}

// untranslatable is the error of options that the machine's policy cannot make a label of.
type untranslatable struct {
	options *v1.SELinuxOptions
	err     error
}

func (e *untranslatable) Error() string {
	return fmt.Sprintf("failed to construct SELinux label from context %q: %v", e.options, e.err)
}

// Unwrap returns the cause.
func (e *untranslatable) Unwrap() error { return e.err }

// ambiguous is the error of a volume whose containers have several labels.
type ambiguous struct{ labels []string }

func (e *ambiguous) Error() string {
	return "multiple SELinux labels found: " + strings.Join(e.labels, ",")
}

// wanted returns the label of the files that the containers of the pod with this volume may use; empty if there is
// none to mount it with. An error is an *untranslatable or *ambiguous, whatever kind of volume it is.
func wanted(h Host, p *v1.Pod, v *Volume) (string, error) {
	labels := map[string]bool{}
	for _, o := range options(p, v.Name) {
		label, err := labelOf(h, o)
		if err != nil {
			return "", &untranslatable{o, err}
		}
		labels[label] = true
	}
	if len(labels) > 1 {
		return "", &ambiguous{slices.Sorted(maps.Keys(labels))}
	}
	if !v.Mountable || isRecursive(p) {
		return "", nil
	}
	for label := range labels {
		return label, nil
	}
	return "", nil
}

// labelOf leaves a label unknown that has no level: the runtime draws one for the container, and a volume that was
// mounted with another one would be closed to it.
func labelOf(h Host, o *v1.SELinuxOptions) (string, error) {
	if o.Level == "" {
		return "", nil
	}
	label, err := h.FileLabel(o)
	if err == nil && strings.ContainsFunc(label, isForeign) {
		err = fmt.Errorf("the label %q must be of letters, digits and the characters _ . : , -", label)
	}
	return label, err
}

// isForeign reports whether no label has the character.
func isForeign(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.:,-", r))
}

// options are those of the containers that mount the volume and have any.
func options(p *v1.Pod, volume string) []*v1.SELinuxOptions {
	var list []*v1.SELinuxOptions
	for c := range podutil.AllContainers(&p.Spec) {
		mounts := slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volume })
		if o := effective(p, c); mounts && o != nil {
			list = append(list, o)
		}
	}
	return list
}

// effective are the container's options, or the pod's where the container has none.
func effective(p *v1.Pod, c *v1.Container) *v1.SELinuxOptions {
	switch {
	case c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil:
		return c.SecurityContext.SELinuxOptions
	case p.Spec.SecurityContext != nil:
		return p.Spec.SecurityContext.SELinuxOptions
	}
	return nil
}

// isRecursive reports whether the pod wants the runtime to label its volumes.
func isRecursive(p *v1.Pod) bool {
	sc := p.Spec.SecurityContext
	return sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive
}

// accessMode is what metrics say of the access of a volume: the widest of its modes.
func accessMode(pv *v1.PersistentVolume) string {
	if pv == nil {
		return "inline"
	}
	for _, mode := range []struct {
		is   v1.PersistentVolumeAccessMode
		name string
	}{
		{v1.ReadWriteMany, "RWX"}, {v1.ReadOnlyMany, "ROX"}, {v1.ReadWriteOnce, "RWO"}, {v1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(pv.Spec.AccessModes, mode.is) {
			return mode.name
		}
	}
	return ""
}
