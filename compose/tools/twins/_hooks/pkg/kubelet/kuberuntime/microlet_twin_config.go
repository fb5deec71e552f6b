package kuberuntime

import (
	"context"
	"os"
	"path/filepath"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	kubeletconfiginternal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/sysctl"
)

// TwinSettings are the node's, as far as the runtime's messages have them.
type TwinSettings struct {
	RootDir, LogsDir             string
	MemoryCapacity, SwapCapacity int64
	SwapController               bool
	SwapBehavior                 string
	SingleProcessOOMKill         *bool
	CPUCFSQuota                  bool
	CPUCFSQuotaPeriod            time.Duration
	DefaultSysctls               map[string]string
	SeccompDefault               bool
	MemoryThrottlingFactor       *float64
	MemoryReservation            bool
	Allocatable                  v1.ResourceList
}

// TwinConfig is a runtime manager that forms messages and sends none.
type TwinConfig struct{ m *kubeGenericRuntimeManager }

var twinManager = cm.NewStubContainerManager()

// NewTwinConfig returns one for one input.
func NewTwinConfig(helper kubecontainer.RuntimeHelper, images internalapi.ImageManagerService, s *TwinSettings,
) *TwinConfig {
	m := &kubeGenericRuntimeManager{
		runtimeHelper: helper, imageService: images, osInterface: twinOS{}, containerManager: twinManager,
		machineInfo: &cadvisorapi.MachineInfo{
			MemoryCapacity: uint64(s.MemoryCapacity), SwapCapacity: uint64(s.SwapCapacity),
		},
		singleProcessOOMKill: s.SingleProcessOOMKill, cpuCFSQuota: s.CPUCFSQuota,
		cpuCFSQuotaPeriod: metav1.Duration{Duration: s.CPUCFSQuotaPeriod}, defaultPodSysctls: s.DefaultSysctls,
		seccompDefault: s.SeccompDefault, seccompProfileRoot: filepath.Join(s.RootDir, "seccomp"),
		memorySwapBehavior: s.SwapBehavior, memoryThrottlingFactor: s.MemoryThrottlingFactor,
		getNodeAllocatable: func() v1.ResourceList { return s.Allocatable }, podLogsDirectory: s.LogsDir,
		getSwapControllerAvailable: func() bool { return s.SwapController },
	}
	if s.MemoryReservation {
		m.memoryReservationPolicy = kubeletconfiginternal.TieredReservationMemoryReservationPolicy
	}
	return &TwinConfig{m}
}

// TwinCgroups says which version of cgroups there is.
func TwinCgroups(unified bool) { isCgroup2UnifiedMode = func() bool { return unified } }

// Sandbox is generatePodSandboxConfig, with what SyncPod does before.
func (t *TwinConfig) Sandbox(ctx context.Context, p *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	sysctl.ConvertPodSysctlsVariableToDotsSeparator(p.Spec.SecurityContext)
	return t.m.generatePodSandboxConfig(ctx, p, attempt)
}

// Container is generateContainerConfig.
func (t *TwinConfig) Container(ctx context.Context, p *v1.Pod, c *v1.Container, restarts int, image string,
	ips []string, target string, images kubecontainer.ImageVolumes) (*runtimeapi.ContainerConfig, error) {
	ip := ""
	if len(ips) > 0 {
		ip = ips[0]
	}
	var id *kubecontainer.ContainerID
	if target != "" {
		id = &kubecontainer.ContainerID{Type: "containerd", ID: target}
	}
	config, _, err := t.m.generateContainerConfig(ctx, c, p, restarts, ip, image, ips, id, images)
	return config, err
}

// twinOS makes no files.
type twinOS struct{ kubecontainer.RealOS }

func (twinOS) MkdirAll(string, os.FileMode) error { return nil }

func (twinOS) Create(string) (*os.File, error) { return nil, nil }

func (twinOS) Chmod(string, os.FileMode) error { return nil }

// Status is convertToKubeContainerStatus, without resources, users and mounts.
func (t *TwinConfig) Status(ctx context.Context, uid types.UID, status *runtimeapi.ContainerStatus,
) *kubecontainer.Status {
	t.m.runtimeName, t.m.actuatedState = "containerd", twinState
	s := t.m.convertToKubeContainerStatus(ctx, uid, status)
	s.Resources, s.User, s.Mounts = nil, nil, nil
	return s
}

// IPs is determinePodSandboxIPs.
func (t *TwinConfig) IPs(ctx context.Context, sandbox *runtimeapi.PodSandboxStatus) []string {
	return t.m.determinePodSandboxIPs(ctx, "shop", "web", sandbox)
}

// TwinLogLink is legacyLogSymlink.
func TwinLogLink(id, container, pod, namespace string) string {
	return legacyLogSymlink(id, container, pod, namespace)
}
