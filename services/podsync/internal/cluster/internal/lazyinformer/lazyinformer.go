// Package lazyinformer watches objects of the API from the moment that they are first needed.
//
// Few nodes have pods that use such objects, and what all nodes watch costs the API server.
package lazyinformer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
)

// firstList is how long the first caller waits for the API server.
const firstList = 10 * time.Second

// Informer watches the objects of one kind.
type Informer struct {
	informer cache.SharedIndexInformer
	synced   cache.DoneChecker
	// wanted is closed when the objects are first needed.
	wanted chan struct{}
	want   sync.Once

	mu sync.Mutex
	// failed is why the objects could not be listed or watched last.
	failed error
}

// New returns an informer that runs when it is needed. Its events go to the handler.
func New(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) (*Informer, error) {
	i := &Informer{informer: informer, synced: informer.HasSyncedChecker(), wanted: make(chan struct{})}
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
	select {
	case <-i.wanted:
		i.informer.RunWithContext(ctx)
	case <-ctx.Done():
	}
	return nil
}

// Synced begins the watch, and waits a while until all objects are known.
func (i *Informer) Synced(ctx context.Context) error {
	i.want.Do(func() { close(i.wanted) })
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
