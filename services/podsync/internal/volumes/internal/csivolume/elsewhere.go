package csivolume

import (
	"errors"
	"io/fs"

	"k8s.io/apimachinery/pkg/types"
)

// IsElsewhere reports whether the folder of a pod other than this one, below the kubelet's root folder, has a file
// about a PersistentVolume: one that is published, that was about to be, or that was not taken from its pod yet. An
// earlier process or a kubelet may have written it. As with the kubelet, a volume whose state is unknown counts as one
// that the pod has (pkg/kubelet/volumemanager/cache).
func IsElsewhere(root, pv string, own types.UID) (bool, error) {
	l := layout{root}
	pods, err := entries(l.pods())
	if err != nil {
		return false, err
	}
	for _, pod := range pods {
		uid := types.UID(pod)
		if uid == own {
			continue
		}
		data, err := load(l.volume(uid, pv))
		if err == nil && !data.inline() || err != nil && !errors.Is(err, fs.ErrNotExist) || l.hasBlock(uid, pv) {
			return true, nil
		}
	}
	return false, nil
}
