package kubelet

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	kubeletconfiginternal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// TwinCrashLoopBackOff is newCrashLoopBackOff.
func TwinCrashLoopBackOff(most time.Duration) (longest, initial time.Duration) {
	c := &kubeletconfiginternal.KubeletConfiguration{}
	c.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: most}
	return newCrashLoopBackOff(c)
}

// TwinDead is getContainersToDeleteInPod once that container has died.
func TwinDead(died string, s *kubecontainer.PodStatus, keep int) []string {
	var ids []string
	for _, c := range getContainersToDeleteInPod(klog.Background(), died, s, max(keep, minDeadContainerInPod)) {
		ids = append(ids, c.ID.ID)
	}
	return ids
}

// TwinStatus is what a kubelet needs to generate the status of one pod.
type TwinStatus struct {
	// Old is what the status manager has; nil if it has none.
	Old *v1.PodStatus
	// Waiting are reason and message by container.
	Waiting map[string][2]string
	Probes  prober.Manager
	HostIPs []string
}

// PodStatus is generateAPIPodStatus.
func (t TwinStatus) PodStatus(ctx context.Context, p *v1.Pod, s *kubecontainer.PodStatus, terminal bool) v1.PodStatus {
	node := &v1.Node{}
	for _, ip := range t.HostIPs {
		node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	kl := &Kubelet{
		statusManager: twinStatusManager{old: t.Old}, probeManager: t.Probes, reasonCache: NewReasonCache(),
		containerManager: twinContainers, kubeClient: twinClient{}, nodeLister: twinNodes{node: node},
		recorder: &record.FakeRecorder{},
	}
	for name, why := range t.Waiting {
		kl.reasonCache.add(p.UID, name, errors.New(why[0]), why[1])
	}
	return kl.generateAPIPodStatus(ctx, p, s, terminal)
}

var twinContainers = cm.NewStubContainerManager()

type twinClient struct{ clientset.Interface }

type twinNodes struct {
	corelisters.NodeLister
	node *v1.Node
}

func (n twinNodes) Get(string) (*v1.Node, error) { return n.node, nil }

type twinStatusManager struct {
	status.Manager
	old *v1.PodStatus
}

func (m twinStatusManager) GetPodStatus(types.UID) (v1.PodStatus, bool) {
	if m.old == nil {
		return v1.PodStatus{}, false
	}
	return *m.old.DeepCopy(), true
}

func (m twinStatusManager) GetPodResizeConditions(types.UID) []*v1.PodCondition { return nil }

func (m twinStatusManager) ClearPodResizeInProgressCondition(types.UID) (int64, bool) {
	return 0, false
}

func (m twinStatusManager) ClearPodResizePendingCondition(types.UID, metrics.DeferredResizeResolution) {
}
