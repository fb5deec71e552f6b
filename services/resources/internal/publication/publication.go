// Package publication puts on the bus what devices the node has and what pods were granted.
//
// It is the writer of RESOURCES/<podUID> and of NODE/resources. After a start, what an earlier process has put holds
// until the plugins have said which devices they have: a restart must not look like the end of all devices. What pods
// are granted meanwhile is put at once.
package publication

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/resources/internal/devices"
)

// period is the most that passes between two rounds, which the watchdog watches.
const period = 2 * time.Second

// Devices are what is put; see devices.Manager.
type Devices interface {
	Pod(uid types.UID) *resourcesv1.PodResources
	Pods() map[types.UID]*resourcesv1.PodResources
	Node() *resourcesv1.NodeResources
}

// Writer is a writer of the bus; see bus.Writer.
type Writer interface {
	Put(key string, m proto.Message)
	Delete(key string)
	Complete()
}

// Publication puts what has changed.
type Publication struct {
	grants, node Writer
	changed      signal.Signal

	mu   sync.Mutex
	pods map[types.UID]struct{} // those that have changed
	all  bool                   // everything was put once
}

// New returns a publication that puts with the writers of RESOURCES and NODE.
func New(grants, node Writer) *Publication {
	return &Publication{grants: grants, node: node, changed: signal.New(), pods: map[types.UID]struct{}{}}
}

// Note notes what has changed. It never blocks.
func (p *Publication) Note(c devices.Change) {
	p.mu.Lock()
	for _, uid := range c.Pods {
		p.pods[uid] = struct{}{}
	}
	p.mu.Unlock()
	p.changed.Set()
}

// Run puts what changes until the context ends. turned is called in each round.
func (p *Publication) Run(ctx context.Context, d Devices, turned func()) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		p.put(d)
		turned()
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-t.C:
		}
	}
}

func (p *Publication) put(d Devices) {
	node := d.Node()
	for _, uid := range p.take() {
		if granted := d.Pod(uid); granted != nil {
			p.grants.Put(subject.PodKey(string(uid)), granted)
		} else {
			p.grants.Delete(subject.PodKey(string(uid)))
		}
	}
	if node == nil {
		return
	}
	p.node.Put(subject.NodeResources, node)
	if p.all {
		return
	}
	p.all = true
	for uid, granted := range d.Pods() {
		p.grants.Put(subject.PodKey(string(uid)), granted)
	}
	p.grants.Complete()
	p.node.Complete()
}

// take returns the pods that have changed.
func (p *Publication) take() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	uids := make([]types.UID, 0, len(p.pods))
	for uid := range p.pods {
		uids = append(uids, uid)
	}
	clear(p.pods)
	return uids
}
