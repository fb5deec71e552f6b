package podsync

import (
	"context"
	"fmt"
	"maps"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/runtimeclass"
)

// kubeletVersion is the kubelet whose behaviour this is, for features that depend on it.
const kubeletVersion = "1.37.1"

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
	features, err := admission.NewDeclaredFeatures(k.DeclaredFeatures(), kubeletVersion)
	if err != nil {
		return err
	}
	n.object = newNodeObject(n.client, n.name, n.ownNode)
	n.runtimeClasses = newRuntimeClasses(n.client, n.services.factory)
	n.handlers.of = n.handlerOf
	n.admitter = admission.NewAdmitter(admission.Options{
		// In the kubelet's order: the first that rejects is what the pod shows.
		Handlers: []admission.Handler{
			admission.Pressure{}, sysctls, admission.NodeFit{}, admission.AppArmor{Enabled: admission.AppArmorEnabled()},
			admission.PodLevelResources{Enabled: k.FeatureEnabled("PodLevelResources")}, features,
		},
		Nodes: n.object, Evictor: &preemptor{n}, Running: n.runtime.Running,
		Metrics: n.service.Metrics, Log: n.service.Log,
	})
	return nil
}

// handlerOf is the pod's handler as far as it is known without asking; a class that is
// not known yet counts as none.
func (n *node) handlerOf(p *v1.Pod) string {
	handler, err := runtimeclass.Finder{Lister: n.runtimeClasses.Lister}.Handler(context.Background(), p.Spec.RuntimeClassName)
	if err != nil {
		return ""
	}
	return handler
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
	own.Status.Capacity, own.Status.Allocatable = n.capacity.capacity, n.capacity.allocatable
	own.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: new(n.runtimeFacts.groupsPolicy())}
	return own
}

// runtimeFacts are what the runtime said last of what it can do.
type runtimeFacts struct {
	last atomic.Pointer[podsyncv1.Runtime]
}

func (f *runtimeFacts) learn(r *podsyncv1.Runtime) {
	if r.GetError() == "" {
		f.last.Store(r)
	}
}

func (f *runtimeFacts) groupsPolicy() bool { return f.last.Load().GetSupplementalGroupsPolicy() }

// nodeObject keeps this node's object, by a watch.
type nodeObject struct {
	name    string
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	lister  corelisters.NodeLister
	synced  cache.DoneChecker
	own     func() *v1.Node

	mu   sync.Mutex
	read *v1.Node // asked for, and perhaps newer than what the watch has told
}

var _ admission.Nodes = (*nodeObject)(nil)

func newNodeObject(client kubernetes.Interface, name string, own func() *v1.Node) *nodeObject {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}))
	nodes := factory.Core().V1().Nodes()
	return &nodeObject{
		name: name, client: client, factory: factory, lister: nodes.Lister(), synced: nodes.Informer().HasSyncedChecker(), own: own,
	}
}

func (o *nodeObject) run(ctx context.Context) error {
	o.factory.StartWithContext(ctx)
	<-ctx.Done()
	o.factory.Shutdown()
	return nil
}

// Node implements admission.Nodes.
func (o *nodeObject) Node() *v1.Node {
	o.mu.Lock()
	read := o.read
	o.mu.Unlock()
	watched, err := o.lister.Get(o.name)
	switch {
	case err != nil && read == nil:
		return o.own()
	case err != nil:
		return read
	case read == nil:
		return watched
	}
	if order, err := resourceversion.CompareResourceVersion(watched.ResourceVersion, read.ResourceVersion); err == nil && order < 0 {
		return read
	}
	return watched
}

// Wait implements admission.Nodes.
func (o *nodeObject) Wait(ctx context.Context) error {
	select {
	case <-o.synced.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nodeTimeout is how long a pod waits for the newest Node before the known one decides.
const nodeTimeout = 5 * time.Second

// Refresh implements admission.Nodes.
func (o *nodeObject) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	read, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", o.name, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read = read
	return nil
}

func newRuntimeClasses(client kubernetes.Interface, factory informers.SharedInformerFactory) runtimeclass.Finder {
	classes := factory.Node().V1().RuntimeClasses()
	classes.Informer() // has the factory watch them
	return runtimeclass.Finder{Lister: classes.Lister(), Getter: client.NodeV1().RuntimeClasses()}
}
