package resources

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/nodepods"
)

// syncPeriod is how often the view of the pods is asked whether it is complete.
const syncPeriod = 20 * time.Millisecond

// pods are the node's pods as podsync publishes them.
type pods struct {
	view  *nodepods.View
	known chan struct{}
}

// await closes known when the view is complete for the first time. While the bus is away later, the pods of before
// hold.
func (p *pods) await(ctx context.Context) error {
	t := time.NewTicker(syncPeriod)
	defer t.Stop()
	for !p.view.Synced() {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
	close(p.known)
	<-ctx.Done()
	return nil
}

// Known is closed when all pods are known.
func (p *pods) Known() <-chan struct{} { return p.known }

// Has reports whether podsync has the pod.
func (p *pods) Has(uid types.UID) bool {
	_, ok := p.view.Get(string(uid))
	return ok
}

// List returns the pods that can be read.
func (p *pods) List() []*v1.Pod {
	all := p.view.All()
	list := make([]*v1.Pod, 0, len(all))
	for _, pod := range all {
		if pod.Err == nil {
			list = append(list, pod.Pod)
		}
	}
	return list
}
