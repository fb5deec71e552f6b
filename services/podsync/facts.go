package podsync

import (
	"context"
	"fmt"
	"maps"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/podsync/internal/cgroup"
	"github.com/microlet/microlet/services/podsync/internal/objects"
)

// capacity is what the node has and what pods may use of it.
type capacity struct {
	capacity, allocatable v1.ResourceList
	// limits and enforced are what the cgroup of all pods is limited to, without and with
	// enforceNodeAllocatable of pods: capacity, and that without the reservations. Only they
	// know of the number of processes, which the API does not.
	limits, enforced v1.ResourceList
	systemUUID       string
	bootID           string
}

func readCapacity(k *kubeletconfig.Config) (capacity, error) {
	if err := os.MkdirAll(k.Node.RootDir, 0o750); err != nil {
		return capacity{}, fmt.Errorf("--root-dir=%s: %w", k.Node.RootDir, err)
	}
	source := nodeinfo.Source{}
	total, err := source.Capacity(nodeinfo.Options{
		RootDir: k.Node.RootDir, MaxPods: k.Kubelet.MaxPods, PodsPerCore: k.Kubelet.PodsPerCore,
	})
	if err != nil {
		return capacity{}, fmt.Errorf("read the node's capacity: %w", err)
	}
	reservation := nodeinfo.Reservation{
		System: k.Kubelet.SystemReserved, Kube: k.Kubelet.KubeReserved, EvictionHard: k.Kubelet.EvictionHard,
		IgnoreEviction: k.Node.AllocatableIgnoreEviction,
	}
	allocatable, err := nodeinfo.Allocatable(total, reservation)
	if err != nil {
		return capacity{}, err
	}
	limits, enforced, err := podLimits(source, total, reservation)
	if err != nil {
		return capacity{}, err
	}
	machine, err := source.Machine()
	if err != nil {
		return capacity{}, fmt.Errorf("read the machine's identity: %w", err)
	}
	return capacity{total, allocatable, limits, enforced, machine.SystemUUID, machine.BootID}, nil
}

// podLimits returns what all pods together are limited to, without and with the reservations.
func podLimits(source nodeinfo.Source, total v1.ResourceList, r nodeinfo.Reservation) (limits, enforced v1.ResourceList, err error) {
	limits = maps.Clone(total)
	processes, err := source.ProcessLimit()
	if err != nil {
		return nil, nil, err
	}
	limits[cgroup.ResourcePIDs] = *resource.NewQuantity(processes, resource.DecimalSI)
	enforced, err = nodeinfo.Enforced(limits, r)
	return limits, enforced, err
}

// serviceEnv are the environment variables that tell containers of Services, kept by a watch.
type serviceEnv struct {
	*objects.Services
	factory informers.SharedInformerFactory
}

// newServiceEnv returns what tells of no Service when there is no apiserver.
func newServiceEnv(client kubernetes.Interface, standalone bool) *serviceEnv {
	factory := informers.NewSharedInformerFactory(client, 0)
	if standalone {
		return &serviceEnv{Services: objects.NewServices(nil, nil), factory: factory}
	}
	i := factory.Core().V1().Services()
	return &serviceEnv{Services: objects.NewServices(i.Lister(), i.Informer().HasSynced), factory: factory}
}

func (e *serviceEnv) run(ctx context.Context) error {
	e.factory.StartWithContext(ctx)
	<-ctx.Done()
	e.factory.Shutdown()
	return nil
}
