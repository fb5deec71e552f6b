package selinuxlabel

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Options of Labels.
type Options struct {
	Host Host
	// AnyAccess is the feature gate SELinuxMount. Without it, a volume has a label only if one pod may have it at a time
	// (ReadWriteOncePod).
	AnyAccess bool
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Labels are those of the node's volumes, as pods want them. They are safe for concurrent use. Nil is a node without
// SELinux.
type Labels struct {
	host      Host
	anyAccess bool
	metrics   *metrics

	mu sync.Mutex
	// volumes are by the names of the PersistentVolumes.
	volumes map[string]*wantedVolume
}

// Label is that of a volume.
type Label struct {
	// Mount is what the volume is mounted with; empty for none.
	Mount string `json:"mount,omitempty"`
	// Wanted is what it would be mounted with if volumes of any access mode were.
	Wanted string `json:"wanted,omitempty"`
}

// wantedVolume is one that pods have or want.
type wantedVolume struct {
	Label
	pods sets.Set[types.UID]
}

// New returns Labels that no pod wants yet.
func New(o Options) *Labels {
	return &Labels{
		host: o.Host, anyAccess: o.AnyAccess, metrics: newMetrics(o.Metrics), volumes: map[string]*wantedVolume{},
	}
}

// Enabled reports whether the node has SELinux.
func (l *Labels) Enabled() bool { return l != nil && l.host.Enabled() }

// Take returns the label with which to mount a volume for a pod. A PersistentVolume is then the pod's until Forget: for
// the pod it keeps its label, and to pods that want another one it is refused.
func (l *Labels) Take(p *v1.Pod, v *Volume) (Label, error) {
	if !l.Enabled() {
		return Label{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.PV != nil && l.volumes[v.PV.Name].has(p.UID) {
		return l.volumes[v.PV.Name].Label, nil
	}
	mode, compares := accessMode(v.PV), v.Mountable
	label, err := wanted(l.host, p, v)
	var several *ambiguous
	switch {
	case errors.As(err, &several):
		err, compares = l.judge(err, v, l.metrics.pod, mode), false
	case err != nil:
		err = l.judge(err, v, l.metrics.container, mode)
	}
	if err != nil {
		return Label{}, err
	}
	plugin := pluginOf(v)
	if v.PV == nil || l.volumes[v.PV.Name] == nil {
		if label != "" {
			l.metrics.admitted.WithLabelValues(plugin, mode).Inc()
		}
		return l.hold(p.UID, v, label), nil
	}
	if before := l.volumes[v.PV.Name].Wanted; compares && before != label {
		conflict := fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", v.PV.Name, before, label)
		if err := l.judge(conflict, v, l.metrics.volume, plugin, mode); err != nil {
			return Label{}, err
		}
	}
	return l.hold(p.UID, v, label), nil
}

// hold notes that the pod has the volume. The label is that of the first pod.
func (l *Labels) hold(pod types.UID, v *Volume, label string) Label {
	if v.PV == nil {
		return Label{Wanted: label} // no other pod has it
	}
	held := l.volumes[v.PV.Name]
	if held == nil {
		held = &wantedVolume{Label: Label{Wanted: label}, pods: sets.New[types.UID]()}
		if l.mounts(v.PV) {
			held.Mount = label
		}
		l.volumes[v.PV.Name] = held
	}
	held.pods.Insert(pod)
	return held.Label
}

// judge counts an error, and returns it only if volumes of this access mode have labels. Of others it counts what would
// be an error if they had.
func (l *Labels) judge(err error, v *Volume, counts counts, labels ...string) error {
	if !l.mounts(v.PV) {
		counts.warnings.WithLabelValues(labels...).Inc()
		return nil
	}
	counts.errors.WithLabelValues(labels...).Inc()
	return err
}

// mounts reports whether volumes of this access mode are mounted with labels.
func (l *Labels) mounts(pv *v1.PersistentVolume) bool {
	return pv != nil && (l.anyAccess ||
		slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}))
}

// Has notes that a pod has a PersistentVolume with a label, which an earlier process has mounted.
func (l *Labels) Has(pod types.UID, pv string, is Label) {
	if !l.Enabled() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.volumes[pv] == nil {
		l.volumes[pv] = &wantedVolume{Label: is, pods: sets.New[types.UID]()}
	}
	l.volumes[pv].pods.Insert(pod)
}

// Forget notes that a pod wants none of its volumes any more.
func (l *Labels) Forget(pod types.UID) {
	if !l.Enabled() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for pv, held := range l.volumes {
		if held.pods.Delete(pod); held.pods.Len() == 0 {
			delete(l.volumes, pv)
		}
	}
}

func (w *wantedVolume) has(pod types.UID) bool { return w != nil && w.pods.Has(pod) }

// pluginOf is the name of the volume's plugin in metrics.
func pluginOf(v *Volume) string { return "kubernetes.io/csi/" + v.Driver }
