package podsync

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/microlet/microlet/proto/role"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/gateway"
	"github.com/microlet/microlet/services/podsync/internal/machine"
	"github.com/microlet/microlet/services/podsync/internal/publish"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
)

// upkeepPeriod is how often the shares of the QoS cgroups are compared with the pods, and
// expired tokens forgotten.
const upkeepPeriod = 10 * time.Second

// prepare makes what all pods share.
func (n *node) prepare() error {
	if err := rootdir.Dir(n.cfg.Kubelet.Node.RootDir).Make(n.service.Log); err != nil {
		return err
	}
	if err := n.logs.Make(); err != nil {
		return fmt.Errorf("make the node's folders: %w", err)
	}
	if err := n.cgroups.EnsureRoots(); err != nil {
		return fmt.Errorf("make the node's cgroups: %w", err)
	}
	return nil
}

// serveGateway shares the runtime out, a socket a role.
func (n *node) serveGateway(ctx context.Context) error {
	listeners := map[role.Role]net.Listener{}
	for _, r := range gateway.Roles() {
		l, err := n.service.Listen(n.service.Config.CRISocket(r))
		if err != nil {
			for _, open := range listeners {
				open.Close()
			}
			return fmt.Errorf("CRI socket of %s: %w", r, err)
		}
		listeners[r] = l
	}
	return n.gateway.Run(ctx, listeners)
}

// nodeReports publishes podsync's keys of NODE: the runtime's state, and with the first one all the others.
type nodeReports struct {
	publisher *publish.Publisher
	capacity  machine.Capacity
	once      sync.Once
}

// Learn implements monitor.Listener.
func (n *nodeReports) Learn(r *podsyncv1.Runtime) {
	n.publisher.Runtime(r)
	n.once.Do(func() {
		n.publisher.Capacity(n.capacity.Total, n.capacity.Allocatable, n.capacity.SystemUUID)
		n.publisher.NodeComplete()
	})
}

// upkeep does what is due from time to time and belongs to no pod.
func (n *node) upkeep(ctx context.Context) error {
	ticker := time.NewTicker(upkeepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := n.driver.Confirm(ctx); err != nil {
			return err
		}
		n.tokens.Collect()
		if missing := n.dispatcher.Unheard(); len(missing) > 0 {
			n.service.Waiting("waiting for pod sources: " + sourceNames(missing))
			continue
		}
		if err := n.cgroups.UpdateQOS(n.workers.Pods()); err != nil {
			n.service.Log.Error("QoS cgroups not updated", "err", err)
		}
	}
}
