// Package lazyinformer watches objects of the API from the moment that somebody first needs them.
//
// Few nodes have pods that use such objects, and what all nodes watch costs the API server.
package lazyinformer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// firstList is how long whoever asks first waits for the API server.
const firstList = 10 * time.Second

// Informer watches the objects of one kind.
type Informer struct {
	factory  informers.SharedInformerFactory
	informer cache.SharedIndexInformer
	synced   cache.DoneChecker

	mu sync.Mutex
	// life ends the watch. It is nil before Run.
	life    context.Context
	wanted  bool
	started bool
	// failed is why the objects could not be listed or watched last.
	failed error
}

// New returns one of the informers of a factory that has no other. Its events go to the handler.
func New(factory informers.SharedInformerFactory, informer cache.SharedIndexInformer,
	handler cache.ResourceEventHandler) (*Informer, error) {
	i := &Informer{factory: factory, informer: informer, synced: informer.HasSyncedChecker()}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("add an event handler: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(i.note); err != nil {
		return nil, fmt.Errorf("set the handler of errors: %w", err)
	}
	return i, nil
}

func (i *Informer) note(ctx context.Context, r *cache.Reflector, err error) {
	i.mu.Lock()
	i.failed = err
	i.mu.Unlock()
	cache.DefaultWatchErrorHandler(ctx, r, err)
}

// Run watches until ctx ends, from the moment that Synced is first called.
func (i *Informer) Run(ctx context.Context) error {
	i.mu.Lock()
	i.life = ctx
	i.start()
	i.mu.Unlock()
	<-ctx.Done()
	i.factory.Shutdown()
	return nil
}

// start begins the watch if somebody wants it and it may run. The lock is held.
func (i *Informer) start() {
	if i.wanted && !i.started && i.life != nil && i.life.Err() == nil {
		i.started = true
		i.factory.StartWithContext(i.life)
	}
}

// Synced begins the watch, and waits a while until all objects are known.
func (i *Informer) Synced(ctx context.Context) error {
	i.mu.Lock()
	i.wanted = true
	i.start()
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, firstList)
	defer cancel()
	select {
	case <-i.synced.Done():
		return nil
	case <-ctx.Done():
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != nil {
		return fmt.Errorf("informer has not yet synced: %w", i.failed)
	}
	return fmt.Errorf("informer has not yet synced: %w", context.Cause(ctx))
}
