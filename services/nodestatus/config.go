package nodestatus

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

// DefaultRequestTimeout is less than the pause between two renewals of the Lease, so that one request
// that hangs costs one try.
const DefaultRequestTimeout = 5 * time.Second

// Config configures nodestatus.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration. Without a kubeconfig, there is no API server to report to.
	Kubelet *kubeletconfig.Config
	// RequestTimeout bounds each request to the apiserver. Default: 5 s.
	RequestTimeout time.Duration
}

// defaultMaxImages is the kubelet's, for the configuration of a supervisor that does not pass the field on yet.
const defaultMaxImages = 50

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{Service: service.DefaultConfig(), RequestTimeout: DefaultRequestTimeout}
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.NodeStatus)
	}
	errs := []error{c.Service.ValidateOnNode()}
	if c.RequestTimeout <= 0 {
		errs = append(errs, fmt.Errorf("request timeout is %v: give a positive one", c.RequestTimeout))
	}
	return errors.Join(errs...)
}

// KubeletFields are the fields of the kubelet's configuration that the service reads.
func KubeletFields() []string {
	return []string{
		"contentType", "enableControllerAttachDetach", "enableServer", "eventBurst", "eventRecordQPS", "evictionHard",
		"featureGates",
		"kubeReserved", "localStorageCapacityIsolation", "maxPods", "nodeLeaseDurationSeconds", "nodeStatusMaxImages",
		"nodeStatusReportFrequency",
		"nodeStatusUpdateFrequency",
		"podsPerCore", "port", "providerID", "registerNode", "registerWithTaints", "reservedSystemCPUs",
		"shutdownGracePeriod",
		"shutdownGracePeriodByPodPriority", "systemReserved",
		"node.allocatableIgnoreEviction", "node.cloudProvider", "node.kubeconfig", "node.nodeIP", "node.nodeLabels",
		"node.rootDir",
	}
}

// settings takes from the configuration what the Node is made of.
func (c *Config) settings() node.Settings {
	k := c.Kubelet
	port := k.Kubelet.Port
	if !*k.Kubelet.EnableServer {
		port = 0
	}
	return node.Settings{
		Name: c.Service.NodeName, Hostname: c.Service.NodeName,
		NodeIPs:                append([]netip.Addr(nil), k.NodeIPs()...),
		ExternalCloud:          k.ExternalCloud(),
		Labels:                 k.Node.NodeLabels,
		Taints:                 k.Kubelet.RegisterWithTaints,
		ProviderID:             k.Kubelet.ProviderID,
		ControllerAttachDetach: *k.Kubelet.EnableControllerAttachDetach,
		KubeletPort:            port,

		LocalStorageCapacityIsolation: *k.Kubelet.LocalStorageCapacityIsolation,
		MaxImages:                     c.maxImages(),
		DeclaredFeatures:              k.DeclaredFeatures(),
		UserNamespace:                 k.FeatureEnabled("KubeletInUserNamespace"),
		MicroletVersion:               telemetry.Version,
	}
}

func (c *Config) maxImages() int {
	if most := c.Kubelet.Kubelet.NodeStatusMaxImages; most != nil {
		return int(*most)
	}
	return defaultMaxImages
}

func (c *Config) limits() nodeinfo.Options {
	return nodeinfo.Options{
		RootDir: c.Kubelet.Node.RootDir, MaxPods: c.Kubelet.Kubelet.MaxPods, PodsPerCore: c.Kubelet.Kubelet.PodsPerCore,
		LocalStorageCapacityIsolation: *c.Kubelet.Kubelet.LocalStorageCapacityIsolation,
	}
}

func (c *Config) reservation() nodeinfo.Reservation {
	system, kube := c.Kubelet.Reserved()
	return nodeinfo.Reservation{
		System: system, Kube: kube,
		EvictionHard: c.Kubelet.Kubelet.EvictionHard, IgnoreEviction: c.Kubelet.Node.AllocatableIgnoreEviction,
	}
}

func (c *Config) leaseDuration() time.Duration {
	return time.Duration(c.Kubelet.Kubelet.NodeLeaseDurationSeconds) * time.Second
}
