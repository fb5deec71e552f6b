// Package node builds the Node object for the registration and for each later status.
//
// All functions are pure. The texts of conditions, reasons and labels are the kubelet's, because people and tools
// read them.
package node

import (
	"net/netip"
	"regexp"
	"runtime"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/kubeversion"
)

// Labels and annotations that have no constant in k8s.io/api.
const (
	labelOSBeta   = "beta.kubernetes.io/os"
	labelArchBeta = "beta.kubernetes.io/arch"
	// annotationAttachDetach says that the controller manager attaches this node's volumes.
	annotationAttachDetach = "volumes.kubernetes.io/controller-managed-attach-detach"
	// annotationProvidedIP shows an external cloud provider which address the operator chose.
	annotationProvidedIP = "alpha.kubernetes.io/provided-node-ip"
	// taintUninitialized keeps pods away until an external cloud provider has seen the node.
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
)

// Settings are what the operator decided about the node.
type Settings struct {
	// Name of the Node object, and Hostname, its hostname label and address.
	Name, Hostname string
	// NodeIPs are --node-ip: none, one, or one of each family. An unspecified address (0.0.0.0, ::)
	// only chooses the family.
	NodeIPs []netip.Addr
	// ExternalCloud is --cloud-provider=external.
	ExternalCloud bool
	// Labels are --node-labels; they win over the defaults.
	Labels map[string]string
	// Taints are registerWithTaints.
	Taints []v1.Taint
	// ProviderID is providerID.
	ProviderID string
	// ControllerAttachDetach is enableControllerAttachDetach.
	ControllerAttachDetach bool
	// KubeletPort is where nodeapi serves the kubelet's API; 0 when it does not.
	KubeletPort int32
	// LocalStorageCapacityIsolation is localStorageCapacityIsolation: without it a node needs no ephemeral-storage to
	// be ready.
	LocalStorageCapacityIsolation bool
	// MaxImages is nodeStatusMaxImages: how many images the status lists; -1 is no bound.
	MaxImages int
	// DeclaredFeatures are what status.declaredFeatures lists, in the order of their names.
	DeclaredFeatures []string
	// UserNamespace is the gate KubeletInUserNamespace: the status says whether the agent runs in a user namespace.
	UserNamespace bool
	// MicroletVersion is added to the reported version as build metadata; "" adds none.
	MicroletVersion string
}

var notBuildMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]+`)

// version is a semantic version: what follows the + is ignored by all who compare. It is the kubelet's, because the
// scheduler, kubeadm and version-skew checks parse it.
func (s Settings) version() string {
	v := "v" + kubeversion.Version + "+microlet"
	if m := notBuildMetadata.ReplaceAllString(s.MicroletVersion, "-"); m != "" {
		v += "." + m
	}
	return v
}

// Initial returns the Node to register, without a status.
func (s Settings) Initial() *v1.Node {
	n := &v1.Node{}
	n.Name = s.Name
	n.Labels = map[string]string{
		v1.LabelHostname:   s.Hostname,
		v1.LabelOSStable:   runtime.GOOS,
		v1.LabelArchStable: runtime.GOARCH,
		labelOSBeta:        runtime.GOOS,
		labelArchBeta:      runtime.GOARCH,
	}
	for k, v := range s.Labels {
		n.Labels[k] = v
	}
	n.Spec.Taints = append(n.Spec.Taints, s.Taints...)
	if s.ExternalCloud {
		n.Spec.Taints = append(n.Spec.Taints,
			v1.Taint{Key: taintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	if s.ControllerAttachDetach {
		n.Annotations = map[string]string{annotationAttachDetach: "true"}
	}
	n.Spec.ProviderID = s.ProviderID
	return n
}
