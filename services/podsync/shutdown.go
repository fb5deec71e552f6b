package podsync

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/nodeshutdown"
	"github.com/microlet/microlet/services/podsync/internal/podreports"
	"github.com/microlet/microlet/services/podsync/internal/shutdowninhibitor"
)

// firstLook bounds the first question whether the machine shuts down, for which the pods wait.
const firstLook = 2 * time.Second

// shutdown ends the pods when the machine shuts down, which waits for it.
type shutdown struct {
	pods      *nodeshutdown.Manager
	inhibitor *shutdowninhibitor.Inhibitor
}

// newShutdown returns nil if the configuration gives the pods no time.
func newShutdown(s *service.Service, k *kubeletconfig.Config, env *environment, reports *podreports.Reports) *shutdown {
	phases := nodeshutdown.Phases(k)
	if len(phases) == 0 {
		return nil
	}
	d := &shutdown{}
	d.pods = nodeshutdown.New(nodeshutdown.Options{
		Phases: phases, Pods: env.workers, Delivered: reports.Mirrors.Delivered,
		NodeReported: func() bool { return k.Standalone() || notReady(env.node.Object.Node()) },
		Release:      func() { d.inhibitor.Release() },
		State:        filepath.Join(k.Node.RootDir, nodeshutdown.StateFile),
		Node:         env.node.Reference, Events: env.events, Log: s.Log, Metrics: s.Metrics,
	})
	d.inhibitor = shutdowninhibitor.New(shutdowninhibitor.Options{
		Delay: nodeshutdown.Total(phases), Kept: s.Kept, Changed: d.pods.Changed, Log: s.Log, Metrics: s.Metrics,
	})
	return d
}

func notReady(n *v1.Node) bool {
	return !slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// start asks first whether the machine shuts down, so that no pod starts again that was ended before a restart.
func (d *shutdown) start(ctx context.Context, s *service.Service) {
	if d == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	if err := d.inhibitor.Look(ctx); err != nil {
		s.Log.Warn("it is not known whether the machine shuts down", logkey.Err, err)
	}
	s.Go("shutdown", d.pods.Run)
	s.Go("shutdown inhibitor", d.inhibitor.Run)
}
