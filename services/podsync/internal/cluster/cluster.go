// Package cluster reads the API objects that pods need: ConfigMaps, Secrets, tokens, certificates, claims, Services,
// runtime classes, CSI drivers.
//
// A change of an object wakes the workers of the pods that reference it. On a node without an API server, each read
// answers at once and reports what is missing.
package cluster

import (
	"context"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/podsync/internal/cluster/informer"
	"github.com/microlet/microlet/services/podsync/internal/cluster/internal/csiobjects"
	"github.com/microlet/microlet/services/podsync/internal/cluster/internal/runtimeclass"
	"github.com/microlet/microlet/services/podsync/internal/cluster/internal/trustbundle"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
	"github.com/microlet/microlet/services/podsync/internal/cluster/podcertificate"
)

// Workers learn of changes; see pods.Workers.
type Workers interface {
	Refresh(uid types.UID, reason string)
}

// Cluster is what was read.
type Cluster struct {
	// Objects are ConfigMaps, Secrets and what else pods name, Tokens those of their service accounts.
	Objects *objects.Store
	Tokens  *objects.Tokens
	// Services are the environment variables that describe Services to containers.
	Services       *objects.Services
	RuntimeClasses runtimeclass.Finder
	// TrustBundles are the ClusterTrustBundles.
	TrustBundles *trustbundle.Bundles
	// CSI are the objects of CSI drivers and of the volumes that they attach.
	CSI *csiobjects.Reader

	client     kubernetes.Interface // nil on a node without an API server
	changed    func(pod types.UID)
	kubelet    *kubeletconfig.Config
	informers  []cache.SharedIndexInformer
	standalone bool
}

// New returns what client reads, as far as there is an apiserver.
func New(client kubernetes.Interface, k *kubeletconfig.Config, workers Workers,
	log *slog.Logger) (*Cluster, error) {
	classes := informer.New(client, client.NodeV1().RuntimeClasses(), &nodev1.RuntimeClass{}, fields.Everything())
	drivers := informer.New(client, client.StorageV1().CSIDrivers(), &storagev1.CSIDriver{}, fields.Everything())
	c := &Cluster{
		RuntimeClasses: runtimeclass.Finder{
			Lister: nodelisters.NewRuntimeClassLister(classes.GetIndexer()), Getter: client.NodeV1().RuntimeClasses(),
		},
		informers: []cache.SharedIndexInformer{classes, drivers}, standalone: k.Standalone(), kubelet: k,
		changed: func(uid types.UID) { workers.Refresh(uid, "object") },
	}
	if c.standalone {
		c.Services = objects.NewServices(nil, nil)
		client = nil // so that it reports what could not be asked for
	} else {
		services := informer.New(client, client.CoreV1().Services(metav1.NamespaceAll), &v1.Service{}, fields.Everything())
		c.informers = append(c.informers, services)
		c.Services = objects.NewServices(corelisters.NewServiceLister(services.GetIndexer()), services.HasSynced)
	}
	c.client = client
	c.Objects = objects.New(client, objects.Options{
		Strategy: string(k.Kubelet.ConfigMapAndSecretChangeDetectionStrategy),
		Changed:  c.changed, Log: log,
	})
	c.Tokens = objects.NewTokens(client, objects.Options{Log: log})
	c.CSI = &csiobjects.Reader{
		Client: client, Lister: storagelisters.NewCSIDriverLister(drivers.GetIndexer()), Secrets: c.Objects.Secret,
	}
	// It fails only once the informer has ended.
	_, _ = drivers.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.CSI.Notify() },
		UpdateFunc: func(any, any) { c.CSI.Notify() },
		DeleteFunc: func(any) { c.CSI.Notify() },
	})
	var err error
	c.TrustBundles, err = trustbundle.New(c.clientWith("ClusterTrustBundleProjection"), c.changed)
	return c, err
}

// clientWith is the client of what needs a feature gate; nil without it.
func (c *Cluster) clientWith(gate string) kubernetes.Interface {
	if c.client == nil || !c.kubelet.FeatureEnabled(gate) {
		return nil
	}
	return c.client
}

// Certificates gets certificates for the pods of a node, by its name and what the API server has of it.
func (c *Cluster) Certificates(name string, node func() *v1.Node, events record.EventRecorder,
	log *slog.Logger) (*podcertificate.Certificates, error) {
	return podcertificate.New(podcertificate.Options{
		Client: c.clientWith("PodCertificateRequest"), NodeName: name, Node: node,
		Changed: c.changed, Events: events, Log: log,
	})
}

// Claims finds what pods claim for a node with these labels.
func (c *Cluster) Claims(labels func() map[string]string) *ClaimFinder {
	return &ClaimFinder{Client: c.client, Labels: labels}
}

// Start has s keep the watches.
func (c *Cluster) Start(s run.Tasks) {
	s.Go("objects", c.Objects.Run)
	s.Go("trust bundles", c.TrustBundles.Run)
	if !c.standalone {
		s.Go("services", c.watch)
	}
}

func (c *Cluster) watch(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, i := range c.informers {
		wg.Go(func() { i.RunWithContext(ctx) })
	}
	wg.Wait()
	return nil
}
