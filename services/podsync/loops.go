package podsync

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/cgroup"
	"github.com/microlet/microlet/services/podsync/internal/gateway"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
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

// tellRuntime publishes the runtime's state; with the first one podsync's keys of NODE
// are complete.
func (n *node) tellRuntime() func(*podsyncv1.Runtime) {
	var once sync.Once
	return func(r *podsyncv1.Runtime) {
		n.handlers.tell(r)
		n.runtimeFacts.learn(r)
		n.network.learn(r)
		n.publisher.Runtime(r)
		once.Do(func() {
			n.publisher.Capacity(n.capacity.Total, n.capacity.Allocatable, n.capacity.SystemUUID)
			n.publisher.NodeComplete()
		})
	}
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
		if err := n.confirmCgroupDriver(ctx); err != nil {
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

// askCgroupDriver is what the runtime says that it uses, and the configuration's
// cgroupDriver if it cannot say (KEP-4033). sure is false while the runtime does not
// answer: that does not keep podsync from starting, but it is asked again.
func (n *node) askCgroupDriver(ctx context.Context) (driver string, sure bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	configured := n.cfg.Kubelet.Kubelet.CgroupDriver
	answer, err := n.runtime.RuntimeConfig(ctx)
	switch {
	case err != nil && !runtime.IsUnimplemented(err):
		n.service.Log.Warn("runtime did not tell its cgroup driver yet, taking the configured one", "driver", configured, "err", err)
		return configured, false
	case err != nil || answer.GetLinux() == nil:
		return configured, true
	case answer.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD:
		return cgroup.DriverSystemd, true
	default:
		return cgroup.DriverCgroupfs, true
	}
}

// confirmCgroupDriver ends podsync when the runtime turns out to use another driver than
// podsync had to start with: every cgroup parent would be wrong. It is started again at once.
func (n *node) confirmCgroupDriver(ctx context.Context) error {
	if n.driverSure {
		return nil
	}
	driver, sure := n.askCgroupDriver(ctx)
	if !sure {
		return nil
	}
	if driver != n.driver {
		return fmt.Errorf("the runtime uses the cgroup driver %s, podsync started with %s before it could ask", driver, n.driver)
	}
	n.driverSure = true
	return nil
}
