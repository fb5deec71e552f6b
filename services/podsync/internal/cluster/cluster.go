// Package cluster reads the API objects that pods need: ConfigMaps, Secrets, tokens, certificates, claims, Services,
// runtime classes, CSI drivers.
//
// A change of an object wakes the workers of the pods that reference it. On a node without an API server, each read
// answers at once and reports what is missing.
package cluster

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/csiobjects"
	"github.com/microlet/microlet/services/podsync/internal/objects"
	"github.com/microlet/microlet/services/podsync/internal/persistentvolume"
	"github.com/microlet/microlet/services/podsync/internal/podcertificate"
	"github.com/microlet/microlet/services/podsync/internal/runtimeclass"
	"github.com/microlet/microlet/services/podsync/internal/thisnode"
	"github.com/microlet/microlet/services/podsync/internal/trustbundle"
)

// Workers learn of changes; see worker.Workers.
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
	factory    informers.SharedInformerFactory
	standalone bool
}

// New returns what client reads, as far as there is an apiserver.
func New(client kubernetes.Interface, k *kubeletconfig.Config, workers Workers,
	log *slog.Logger) (*Cluster, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	classes := factory.Node().V1().RuntimeClasses()
	drivers := factory.Storage().V1().CSIDrivers()
	// Has the factory watch them.
	classes.Informer()
	drivers.Informer()
	c := &Cluster{
		RuntimeClasses: runtimeclass.Finder{Lister: classes.Lister(), Getter: client.NodeV1().RuntimeClasses()},
		factory:        factory, standalone: k.Standalone(), kubelet: k,
		changed: func(uid types.UID) { workers.Refresh(uid, "object") },
	}
	if c.standalone {
		c.Services = objects.NewServices(nil, nil)
		client = nil // so that it reports what could not be asked for
	} else {
		services := factory.Core().V1().Services()
		c.Services = objects.NewServices(services.Lister(), services.Informer().HasSynced)
	}
	c.client = client
	c.Objects = objects.New(client, objects.Options{
		Strategy: string(k.Kubelet.ConfigMapAndSecretChangeDetectionStrategy),
		Changed:  c.changed, Log: log,
	})
	c.Tokens = objects.NewTokens(client, objects.Options{Log: log})
	c.CSI = &csiobjects.Reader{Client: client, Lister: drivers.Lister(), Secrets: c.Objects.Secret}
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

// Certificates gets certificates for the pods of a node.
func (c *Cluster) Certificates(node *thisnode.Node, events record.EventRecorder,
	log *slog.Logger) (*podcertificate.Certificates, error) {
	return podcertificate.New(podcertificate.Options{
		Client: c.clientWith("PodCertificateRequest"), NodeName: node.Reference.Name, Node: node.Object.Node,
		Changed: c.changed, Events: events, Log: log,
	})
}

// Claims finds what pods claim for a node with these labels.
func (c *Cluster) Claims(labels func() map[string]string) *persistentvolume.Finder {
	return &persistentvolume.Finder{Client: c.client, Labels: labels}
}

// Start has s keep the watches.
func (c *Cluster) Start(s *service.Service) {
	s.Go("objects", c.Objects.Run)
	s.Go("trust bundles", c.TrustBundles.Run)
	if !c.standalone {
		s.Go("services", c.watch)
	}
}

func (c *Cluster) watch(ctx context.Context) error {
	c.factory.StartWithContext(ctx)
	<-ctx.Done()
	c.factory.Shutdown()
	return nil
}
