package kubelet

import (
	"context"
	"net"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	clientset "k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"k8s.io/kubernetes/pkg/kubelet/configmap"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
	"k8s.io/kubernetes/pkg/kubelet/runtimeclass"
	"k8s.io/kubernetes/pkg/kubelet/secret"
	"k8s.io/kubernetes/pkg/kubelet/userns"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
)

// TwinNode is what a pod's configuration depends on beside the pod.
type TwinNode struct {
	RootDir, ClusterDomain string
	Node                   *v1.Node
	NodeIPs                []net.IP
	// Services are all that there are; Synced says that they were read.
	Services []*v1.Service
	Synced   bool
	// Secret and ConfigMap get objects.
	Secret    func(namespace, name string) (*v1.Secret, error)
	ConfigMap func(namespace, name string) (*v1.ConfigMap, error)
	// Volumes are those of the pod, Groups the further groups that these ask for.
	Volumes kubecontainer.VolumeMap
	Groups  []int64
	// RecursiveReadOnly says that the runtime can mount so.
	RecursiveReadOnly bool
	CgroupParent      string
	DNS               *runtimeapi.DNSConfig
	// Users is the user namespace of a pod that has its own.
	Users *runtimeapi.UserNamespace
}

// TwinHelper is a kubelet with nothing behind it, as the runtime manager knows it.
type TwinHelper struct {
	*Kubelet
	n *TwinNode
}

var twinClasses = &runtimeclass.Manager{}

// NewTwinHelper returns one for one input.
func NewTwinHelper(n *TwinNode) *TwinHelper {
	kl := &Kubelet{
		rootDirectory: n.RootDir, nodeName: "node", nodeIPs: n.NodeIPs, kubeClient: struct{ clientset.Interface }{},
		nodeLister: twinNodes{node: n.Node}, serviceLister: twinServices(n.Services),
		serviceHasSynced: func() bool { return n.Synced },
		secretManager:    twinSecrets{get: n.Secret}, configMapManager: twinConfigMaps{get: n.ConfigMap},
		volumeManager: twinVolumes{n: n}, containerManager: twinContainers, runtimeClassManager: twinClasses,
		runtimeState: newRuntimeState(0), hostutil: twinHost{}, subpather: twinSubPaths{},
		dnsConfigurer: &dns.Configurer{ClusterDomain: n.ClusterDomain}, usernsManager: &userns.UsernsManager{},
	}
	kl.runtimeState.setRuntimeHandlers([]kubecontainer.RuntimeHandler{
		{SupportsRecursiveReadOnlyMounts: n.RecursiveReadOnly, SupportsUserNamespaces: true},
	})
	return &TwinHelper{kl, n}
}

// GetPodDNS is that of the input: it has a comparison of its own.
func (h *TwinHelper) GetPodDNS(context.Context, *v1.Pod) (*runtimeapi.DNSConfig, error) {
	return h.n.DNS, nil
}

func (h *TwinHelper) GetPodCgroupParent(*v1.Pod) string { return h.n.CgroupParent }

// GetOrCreateUserNamespaceMappings is that of the kubelet, which takes the IDs of the input.
func (h *TwinHelper) GetOrCreateUserNamespaceMappings(logger klog.Logger, p *v1.Pod, handler string) (
	*runtimeapi.UserNamespace, error) {
	if p.Spec.HostUsers != nil && !*p.Spec.HostUsers {
		return h.n.Users, nil
	}
	return h.usernsManager.GetOrCreateUserNamespaceMappings(logger, p, handler)
}

type twinServices []*v1.Service

func (l twinServices) List(labels.Selector) ([]*v1.Service, error) { return l, nil }

type twinSecrets struct {
	secret.Manager
	get func(namespace, name string) (*v1.Secret, error)
}

func (m twinSecrets) GetSecret(namespace, name string) (*v1.Secret, error) {
	return m.get(namespace, name)
}

type twinConfigMaps struct {
	configmap.Manager
	get func(namespace, name string) (*v1.ConfigMap, error)
}

func (m twinConfigMaps) GetConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	return m.get(namespace, name)
}

type twinVolumes struct {
	volumemanager.VolumeManager
	n *TwinNode
}

func (m twinVolumes) GetMountedVolumesForPod(volumetypes.UniquePodName) kubecontainer.VolumeMap {
	return m.n.Volumes
}

func (m twinVolumes) GetExtraSupplementalGroupsForPod(*v1.Pod) []int64 { return m.n.Groups }

// twinHost has every path.
type twinHost struct{ hostutil.HostUtils }

func (twinHost) PathExists(string) (bool, error) { return true, nil }

// twinSubPaths binds a path where it is.
type twinSubPaths struct{ subpath.Interface }

func (twinSubPaths) PrepareSafeSubpath(s subpath.Subpath) (string, func(), error) {
	return s.Path, nil, nil
}

// SortIPs is sortPodIPs.
func (h *TwinHelper) SortIPs(ips []string) []string { return h.sortPodIPs(ips) }
