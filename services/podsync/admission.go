package podsync

import (
	"fmt"
	"maps"
	goruntime "runtime"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/helperpods"
	"github.com/microlet/microlet/services/podsync/internal/nodeobject"
	"github.com/microlet/microlet/services/podsync/internal/preemptor"
	"github.com/microlet/microlet/services/podsync/internal/runtimeclass"
)

func (n *node) buildAdmission() error {
	k := n.cfg.Kubelet
	kernel, err := kernelRelease()
	if err != nil {
		return err
	}
	sysctls, err := admission.NewSysctls(k.Kubelet.AllowedUnsafeSysctls, kernel)
	if err != nil {
		return err
	}
	features, err := admission.NewDeclaredFeatures(k.DeclaredFeatures(), kubeversion.Version)
	if err != nil {
		return err
	}
	n.object = nodeobject.New(n.client, n.name, n.ownNode)
	n.admitter = admission.NewAdmitter(admission.Options{
		// In the kubelet's order, ours last: the first that rejects is what the pod shows.
		Handlers: []admission.Handler{
			admission.Pressure{}, sysctls, admission.NodeFit{}, admission.AppArmor{Enabled: admission.AppArmorEnabled()},
			admission.PodLevelResources{Enabled: k.FeatureEnabled("PodLevelResources")}, features,
			n.helpers(),
		},
		Nodes: n.object, Evictor: preemptor.New(n.workers, n.events), Running: n.runtime.Running,
		Metrics: n.service.Metrics, Log: n.service.Log,
	})
	n.helperPods = helperpods.New(n.admitter, n.helpers(), peer.Helpers{Dir: n.cfg.Service.HelpersDir()}, n.service.Log)
	return nil
}

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// ownNode is the Node as this machine would register it, for static pods that start
// before the apiserver answers.
func (n *node) ownNode() *v1.Node {
	own := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
		v1.LabelHostname: n.name, v1.LabelOSStable: goruntime.GOOS, v1.LabelArchStable: goruntime.GOARCH,
		"beta.kubernetes.io/os": goruntime.GOOS, "beta.kubernetes.io/arch": goruntime.GOARCH,
	}}}
	maps.Copy(own.Labels, n.cfg.Kubelet.Node.NodeLabels)
	own.Spec.Taints = n.cfg.Kubelet.Kubelet.RegisterWithTaints
	own.Status.Capacity, own.Status.Allocatable = n.capacity.Total, n.capacity.Allocatable
	own.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: new(n.state.SupplementalGroupsPolicy())}
	return own
}

func newRuntimeClasses(client kubernetes.Interface, factory informers.SharedInformerFactory) runtimeclass.Finder {
	classes := factory.Node().V1().RuntimeClasses()
	classes.Informer() // has the factory watch them
	return runtimeclass.Finder{Lister: classes.Lister(), Getter: client.NodeV1().RuntimeClasses()}
}

// helpers judges who may reach for what is the node agent's own.
func (n *node) helpers() admission.Helpers {
	return admission.Helpers{Namespace: n.cfg.HelperNamespace, Folders: admission.FoldersOf(n.cfg.Service.RuntimeDir)}
}

// privateFolder is the runtime folder for pods that are no helpers.
func (n *node) privateFolder(p *v1.Pod) string {
	if n.helpers().Role(p) != "" {
		return ""
	}
	return n.cfg.Service.RuntimeDir
}
