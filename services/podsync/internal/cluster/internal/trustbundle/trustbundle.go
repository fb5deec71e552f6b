// Package trustbundle provides what is in ClusterTrustBundles, for projected volumes.
//
// The bundles are watched from the moment that a pod needs one. A change wakes the pods that were given what it changes
// or that wait for it.
package trustbundle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/microlet/microlet/services/podsync/internal/cluster/informer"
	"github.com/microlet/microlet/services/podsync/internal/cluster/internal/lazyinformer"
)

// maxSelector is how long a label selector may be.
const maxSelector = 100 << 10

// Errors that are the kubelet's.
var (
	errStandalone = errors.New("ClusterTrustBundle projection is not supported in static kubelet mode")
	errNothing    = errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	errNoMatch    = errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
)

// Bundles are the cluster's. It is safe for concurrent use.
type Bundles struct {
	// informer is nil on a node that has none.
	informer *lazyinformer.Informer
	lister   certificateslisters.ClusterTrustBundleLister
	changed  func(pod types.UID)

	mu sync.Mutex
	// users are the pods that asked, and what for.
	users map[types.UID]map[wish]bool
}

// wish is a bundle, or all bundles of a signer.
type wish struct{ name, signer string }

// New returns the bundles of a cluster; with a nil client every question fails, as on a node without an API server.
// Changed is called with a pod when its bundles have changed. It must not block.
func New(client kubernetes.Interface, changed func(pod types.UID)) (*Bundles, error) {
	b := &Bundles{changed: changed, users: map[types.UID]map[wish]bool{}}
	if client == nil {
		return b, nil
	}
	bundles := informer.New(client, client.CertificatesV1().ClusterTrustBundles(), &certificatesv1.ClusterTrustBundle{},
		fields.Everything())
	b.lister = certificateslisters.NewClusterTrustBundleLister(bundles.GetIndexer())
	var err error
	b.informer, err = lazyinformer.New(bundles, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { b.wake(bundleOf(o)) },
		UpdateFunc: b.updated,
		DeleteFunc: func(o any) { b.wake(bundleOf(o)) },
	})
	return b, err
}

// Run watches until ctx ends.
func (b *Bundles) Run(ctx context.Context) error {
	if b.informer == nil {
		<-ctx.Done()
		return nil
	}
	return b.informer.Run(ctx)
}

// TrustAnchors returns the certificates of a projection for a pod: each once, and nothing but certificates. Their order
// is undefined, but stays the same for a pod. Source: kubelet, clustertrustbundle.
func (b *Bundles) TrustAnchors(ctx context.Context, pod types.UID, p *v1.ClusterTrustBundleProjection) ([]byte, error) {
	if b.informer == nil {
		return nil, errStandalone
	}
	if p.Name == nil && p.SignerName == nil {
		return nil, errNothing
	}
	b.note(pod, p)
	if err := b.informer.Synced(ctx); err != nil {
		return nil, fmt.Errorf("ClusterTrustBundle %w", err)
	}
	optional := p.Optional != nil && *p.Optional
	if p.Name != nil {
		found, err := b.lister.Get(*p.Name)
		switch {
		case apierrors.IsNotFound(err) && optional:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("while getting ClusterTrustBundle: %w", err)
		}
		return normalized(pod, found), nil
	}
	found, err := b.ofSigner(*p.SignerName, p.LabelSelector)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && !optional {
		return nil, errNoMatch
	}
	return normalized(pod, found...), nil
}

func (b *Bundles) ofSigner(signer string, of *metav1.LabelSelector) ([]*certificatesv1.ClusterTrustBundle, error) {
	selector, err := metav1.LabelSelectorAsSelector(of) // nil selects nothing
	if err != nil {
		return nil, fmt.Errorf("while parsing label selector: %w", err)
	}
	if length := len(selector.String()); length > maxSelector {
		return nil, fmt.Errorf("label selector length (%d) is larger than %d", length, maxSelector)
	}
	found, err := b.lister.List(selector)
	if err != nil {
		return nil, fmt.Errorf("while listing ClusterTrustBundles matching label selector %v: %w", of, err)
	}
	return slices.DeleteFunc(found, func(o *certificatesv1.ClusterTrustBundle) bool {
		return o.Spec.SignerName != signer
	}), nil
}

// normalized returns each certificate of the bundles once, without what else is in them.
func normalized(pod types.UID, bundles ...*certificatesv1.ClusterTrustBundle) []byte {
	type anchor struct {
		place [sha256.Size]byte
		der   []byte
	}
	var anchors []anchor
	for _, o := range bundles {
		for block, rest := pem.Decode([]byte(o.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			anchors = append(anchors, anchor{sha256.Sum256(append([]byte(pod), block.Bytes...)), block.Bytes})
		}
	}
	slices.SortFunc(anchors, func(a, b anchor) int {
		return cmp.Or(bytes.Compare(a.place[:], b.place[:]), bytes.Compare(a.der, b.der))
	})
	anchors = slices.CompactFunc(anchors, func(a, b anchor) bool { return bytes.Equal(a.der, b.der) })
	var text []byte
	for _, a := range anchors {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})...)
	}
	return text
}

// Forget drops what is known of a pod that is gone.
func (b *Bundles) Forget(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.users, pod)
}

func (b *Bundles) note(pod types.UID, p *v1.ClusterTrustBundleProjection) {
	var w wish
	if p.Name != nil {
		w.name = *p.Name
	} else {
		w.signer = *p.SignerName
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users[pod] == nil {
		b.users[pod] = map[wish]bool{}
	}
	b.users[pod][w] = true
}

// updated passes on what changes something: the informer reports an object again after each lost watch.
func (b *Bundles) updated(before, after any) {
	old, now := bundleOf(before), bundleOf(after)
	if old != nil && now != nil && old.Spec == now.Spec && labels.Equals(old.Labels, now.Labels) {
		return
	}
	b.wake(old)
	b.wake(now)
}

// wake wakes the pods that the bundle concerns. Those that its labels do not select find that nothing has changed.
func (b *Bundles) wake(o *certificatesv1.ClusterTrustBundle) {
	if o == nil {
		return
	}
	b.mu.Lock()
	var pods []types.UID
	for pod, wishes := range b.users {
		if wishes[wish{name: o.Name}] || o.Spec.SignerName != "" && wishes[wish{signer: o.Spec.SignerName}] {
			pods = append(pods, pod)
		}
	}
	b.mu.Unlock()
	for _, pod := range pods {
		b.changed(pod)
	}
}

// bundleOf is the bundle of an informer's event, or nil.
func bundleOf(o any) *certificatesv1.ClusterTrustBundle {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	bundle, _ := o.(*certificatesv1.ClusterTrustBundle)
	return bundle
}
