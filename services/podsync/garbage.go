package podsync

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/logrotate"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
)

// reasonContainerGCFailed is the kubelet's event for dead containers that cannot be collected.
const reasonContainerGCFailed = "ContainerGCFailed"

// buildGarbage furnishes what removes that which nobody needs any more.
func (n *node) buildGarbage() error {
	k := n.cfg.Kubelet
	n.logs = podlogs.Folders{Pods: k.Kubelet.PodLogsDir, Links: n.cfg.ContainerLogLinks, Group: role.GroupLogs}
	var err error
	n.rotator, err = logrotate.New(logrotate.Options{
		Runtime: n.runtime, MaxSize: k.Kubelet.ContainerLogMaxSize, MaxFiles: int(*k.Kubelet.ContainerLogMaxFiles),
		Workers: int(*k.Kubelet.ContainerLogMaxWorkers), Interval: k.Kubelet.ContainerLogMonitorInterval.Duration,
		Log: n.service.Log, Metrics: n.service.Metrics,
	})
	if err != nil {
		return err
	}
	n.cleanup = cleanup.New(cleanup.Options{
		Runtime: runtime.LowPriority{Runtime: n.runtime}, Volumes: n.volumes, Cgroups: n.cgroups, Logs: n.logs, Pods: n.workers, Orphans: n.workers.Orphans(),
		Policy: cleanup.Policy{
			MinAge:          k.Node.MinimumContainerTTL.Duration,
			MaxPerContainer: int(k.Node.MaxDeadContainersPerContainer),
			MaxContainers:   int(k.Node.MaxDeadContainers),
		},
		Failed: func(err error) {
			n.events.Event(eventref.Node(n.name), v1.EventTypeWarning, reasonContainerGCFailed, err.Error())
		},
		Log: n.service.Log, Metrics: cleanup.NewMetrics(n.service.Metrics),
	})
	return nil
}

func (n *node) runCleanup(ctx context.Context) error { return n.cleanup.Run(ctx, n.workers.Synced()) }

// rotateLogs runs beside everything else: neither a log nor a runtime that hangs holds up a pod.
func (n *node) rotateLogs(ctx context.Context) error {
	if err := n.logs.Adopt(); err != nil {
		n.service.Log.Warn("log folders not all brought in line", "err", fmt.Errorf("group %d: %w", role.GroupLogs, err))
	}
	return n.rotator.Run(ctx)
}
