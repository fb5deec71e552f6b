// Package podcertificate gets certificates for pods, for projected volumes (KEP-4317).
//
// A projection gets a key pair of its own. The key stays on the node, and a signer certifies it by a
// PodCertificateRequest. When a certificate is due for another, the next question for it asks for one, with a new key;
// until it is issued the old one serves. What was issued is in memory alone: after a restart of podsync all projections
// ask again, as under the kubelet.
package podcertificate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/shares"
	"github.com/microlet/microlet/services/podsync/internal/cluster/informer"
	"github.com/microlet/microlet/services/podsync/internal/cluster/internal/lazyinformer"
)

const (
	// patience is how long a pod that has no certificate yet waits for its signer before it reports that it waits.
	patience = 5 * time.Second
	// timeout bounds the request of a certificate.
	timeout = 10 * time.Second
)

// Errors that are the kubelet's.
var (
	errStandalone = errors.New("pod certificates are not supported on a node without an API server")
	errNotYet     = errors.New("credential bundle is not issued yet")
)

// Options of Certificates.
type Options struct {
	// Client is nil on a node without an API server.
	Client kubernetes.Interface
	// Node is this node's object.
	Node func() *v1.Node
	// NodeName is its name.
	NodeName string
	// Changed is called with a pod that has got another certificate, or will get none. It must not block.
	Changed func(pod types.UID)
	Events  record.EventRecorder
	Log     *slog.Logger
}

// Certificates are those of the node's pods. It is safe for concurrent use.
type Certificates struct {
	o Options
	// informer is nil on a node that has none.
	informer *lazyinformer.Informer
	lister   certificateslisters.PodCertificateRequestLister
	// making has a place for each key that is made by generate.
	making   *shares.Places
	generate func(kind string) (key, proof []byte, err error)

	mu          sync.Mutex
	projections map[types.UID]map[Place]*projection
}

// Place is that of a projection among a pod's volumes.
type Place struct {
	Volume string
	// Source is its index in the volume.
	Source int
}

// Bundle is a key and its certificate, both as PEM.
type Bundle struct{ Key, Chain []byte }

// New returns the certificates of a node's pods.
func New(o Options) (*Certificates, error) {
	c := &Certificates{o: o, making: shares.New(1), generate: newKey, projections: map[types.UID]map[Place]*projection{}}
	if o.Client == nil {
		return c, nil
	}
	// The Node authorizer lets a node list its own.
	requests := informer.New(o.Client, o.Client.CertificatesV1().PodCertificateRequests(metav1.NamespaceAll),
		&certificatesv1.PodCertificateRequest{}, fields.OneTermEqualSelector("spec.nodeName", o.NodeName))
	c.lister = certificateslisters.NewPodCertificateRequestLister(requests.GetIndexer())
	var err error
	c.informer, err = lazyinformer.New(requests, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.changed,
		UpdateFunc: func(_, now any) { c.changed(now) },
	})
	return c, err
}

// Run watches the requests until ctx ends.
func (c *Certificates) Run(ctx context.Context) error {
	if c.informer == nil {
		<-ctx.Done()
		return nil
	}
	return c.informer.Run(ctx)
}

// Bundle returns a pod's certificate. It asks for one when there is none, and for the next when it is time.
func (c *Certificates) Bundle(ctx context.Context, p *v1.Pod, at Place,
	source *v1.PodCertificateProjection) (Bundle, error) {
	if c.informer == nil {
		return Bundle{}, errStandalone
	}
	if err := c.informer.Synced(ctx); err != nil {
		return Bundle{}, fmt.Errorf("PodCertificateRequest %w", err)
	}
	own := c.projection(p, at)
	if c.begins(own) {
		c.request(ctx, own, source)
	}
	c.await(ctx, own)
	c.mu.Lock()
	defer c.mu.Unlock()
	return own.bundle()
}

// Forget drops what is known of a pod that is gone.
func (c *Certificates) Forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.projections, pod)
}

// projection returns that of a pod at a place.
func (c *Certificates) projection(p *v1.Pod, at Place) *projection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.projections[p.UID] == nil {
		c.projections[p.UID] = map[Place]*projection{}
	}
	own := c.projections[p.UID][at]
	if own == nil {
		own = &projection{moved: make(chan struct{}), pauses: newPauses()}
		c.projections[p.UID][at] = own
	}
	own.pod = p
	return own
}

// begins reports whether the caller is to request a certificate.
func (c *Certificates) begins(own *projection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(own)
	own.warn(c.o.Events)
	return own.begins()
}

// request requests a certificate for a projection. begins must have returned true for it.
func (c *Certificates) request(ctx context.Context, own *projection, source *v1.PodCertificateProjection) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pending, err := c.create(ctx, own.pod, source)
	c.mu.Lock()
	defer c.mu.Unlock()
	own.requested(pending, err)
	if err != nil && own.issued != nil && ctx.Err() == nil {
		c.o.Log.Warn("a pod's certificate could not be renewed and serves on", logkey.Pod,
			own.pod.Namespace+"/"+own.pod.Name, logkey.PodUID, own.pod.UID, "expires", own.issued.notAfter,
			logkey.Err, err)
	}
}

// await waits a while for the first certificate.
func (c *Certificates) await(ctx context.Context, own *projection) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		c.settle(own)
		waits, moved := own.waits(), own.moved
		c.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-moved:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// changed takes an event of the informer.
func (c *Certificates) changed(o any) {
	request, ok := o.(*certificatesv1.PodCertificateRequest)
	if !ok {
		return
	}
	uid, news := request.Spec.PodUID, false
	c.mu.Lock()
	for _, own := range c.projections[uid] {
		if own.pending != nil && own.pending.name == request.Name && c.settle(own) {
			news = true
		}
	}
	c.mu.Unlock()
	if news {
		c.o.Changed(uid)
	}
}

// settle looks what has become of the request that is under way, and reports whether it is no more. The lock is held.
func (c *Certificates) settle(own *projection) bool {
	if own.pending == nil {
		return false
	}
	found, err := c.lister.PodCertificateRequests(own.pod.Namespace).Get(own.pending.name)
	return own.settle(found, err, c.o.Events)
}
