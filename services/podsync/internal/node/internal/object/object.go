// Package object provides the newest Node object for admission.
//
// It watches the one Node and reads it on request. A requested read is never followed by an older version. For
// static pods, it provides the Node as this machine would register it until the API server answers.
package object

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cluster/informer"
)

// Object keeps this node's object, by a watch.
type Object struct {
	name     string
	client   kubernetes.Interface
	informer cache.SharedIndexInformer
	lister   corelisters.NodeLister
	synced   cache.DoneChecker
	own      func() *v1.Node

	mu   sync.Mutex
	read *v1.Node // asked for, and perhaps newer than what the watch has sent
	// asked is how often it was asked for, and answered which of these has brought read.
	asked, answered int
	// changed is closed, and replaced, when the watch sends the Node.
	changed chan struct{}
}

var _ admission.Nodes = (*Object)(nil)

// New returns an Object of the named node; own is the Node as this machine would register it.
func New(client kubernetes.Interface, name string, own func() *v1.Node) *Object {
	nodes := informer.New(client, client.CoreV1().Nodes(), &v1.Node{},
		fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	o := &Object{
		name:     name,
		client:   client,
		informer: nodes,
		lister:   corelisters.NewNodeLister(nodes.GetIndexer()),
		synced:   nodes.HasSyncedChecker(),
		own:      own,
		changed:  make(chan struct{}),
	}
	// It fails only once the informer has ended.
	_, _ = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { o.sent() }, UpdateFunc: func(any, any) { o.sent() },
	})
	return o
}

// sent wakes those who wait for the Node to change.
func (o *Object) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// Until waits until the Node is as wanted, or ctx ends.
func (o *Object) Until(ctx context.Context, wanted func(*v1.Node) bool) error {
	for {
		o.mu.Lock()
		changed := o.changed
		o.mu.Unlock()
		if wanted(o.Node()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Run watches until ctx ends.
func (o *Object) Run(ctx context.Context) error {
	o.informer.RunWithContext(ctx)
	return nil
}

// Node implements admission.Nodes.
func (o *Object) Node() *v1.Node {
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
	if order, err := resourceversion.CompareResourceVersion(watched.ResourceVersion, read.ResourceVersion); err == nil &&
		order < 0 {
		return read
	}
	return watched
}

// Wait implements admission.Nodes.
func (o *Object) Wait(ctx context.Context) error {
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
func (o *Object) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	o.mu.Lock()
	o.asked++
	number := o.asked
	o.mu.Unlock()
	read, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", o.name, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	// The answers of two who ask at once may come in any order, and who asked last has the newest.
	if number > o.answered {
		o.read, o.answered = read, number
	}
	return nil
}
