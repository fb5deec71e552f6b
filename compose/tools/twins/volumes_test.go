package twins

import (
	"path/filepath"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubevolume "k8s.io/kubernetes/pkg/volume"

	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

// kubeVolumes are mounted volumes in the kubelet's form.
func kubeVolumes(volumes map[string]volume.Mounted) kubecontainer.VolumeMap {
	all := kubecontainer.VolumeMap{}
	for name, v := range volumes {
		info := kubecontainer.VolumeInfo{ReadOnly: v.ReadOnly, InnerVolumeSpecName: name}
		if v.Device != "" {
			info.BlockVolumeMapper = kubeDevice{v: v}
		} else {
			info.Mounter = kubeMounter{v: v}
		}
		all[name] = info
	}
	return all
}

type kubeMounter struct {
	kubevolume.Mounter
	v volume.Mounted
}

func (m kubeMounter) GetPath() string { return m.v.HostPath }

func (m kubeMounter) GetAttributes() kubevolume.Attributes {
	return kubevolume.Attributes{ReadOnly: m.v.ReadOnly, Managed: true, SELinuxRelabel: m.v.SELinuxRelabel}
}

type kubeDevice struct {
	kubevolume.BlockVolumeMapper
	v volume.Mounted
}

func (d kubeDevice) GetPodDeviceMapPath() (string, string) { return filepath.Split(d.v.Device) }
