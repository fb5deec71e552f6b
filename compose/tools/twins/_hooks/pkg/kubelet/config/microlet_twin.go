package config

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/capabilities"
)

func init() { capabilities.Setup(true, 0) } // as the kubelet does

// TwinDecode is tryDecodeSinglePod with applyDefaults.
func TwinDecode(data []byte, source string, isFile bool, nodeName string) (*v1.Pod, error) {
	_, p, err := tryDecodeSinglePod(klog.Background(), data, func(logger klog.Logger, p *api.Pod) error {
		return applyDefaults(logger, p, source, isFile, types.NodeName(nodeName))
	})
	return p, err
}
