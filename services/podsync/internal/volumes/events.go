package volumes

import (
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// events are sent about volumes that a pod has got, with the kubelet's texts.
type events struct{ recorder record.EventRecorder }

func (e events) send(p *v1.Pod, kind, reason, format string, args ...any) {
	if e.recorder != nil {
		e.recorder.Eventf(p, kind, reason, format, args...)
	}
}

// mapped reports that a device is mapped: at a folder of the volume, and at the pod's link to it.
func (e events) mapped(p *v1.Pod, pv, folder, link string) {
	const succeeded = "MapVolume.MapPodDevice succeeded for volume %q %s %q"
	e.send(p, v1.EventTypeNormal, "SuccessfulMountVolume", succeeded, pv, "globalMapPath", folder)
	e.send(p, v1.EventTypeNormal, "SuccessfulMountVolume", succeeded, pv, "volumeMapPath", filepath.Dir(link))
}

// otherGroup reports that a volume keeps the group of the pod that had it first.
func (e events) otherGroup(p *v1.Pod, pv string, has uint32) {
	e.send(p, v1.EventTypeWarning, "AlreadyMountedVolume",
		"The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.", *fsGroup(p), pv, has)
}
