// Package shutdown keeps a machine that shuts down waiting for the pods of its node.
package shutdown

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/shutdown/internal/inhibitor"
	"github.com/microlet/microlet/services/podsync/internal/shutdown/internal/manager"
)

// firstLook bounds the first question whether the machine shuts down, for which the pods wait.
const firstLook = 2 * time.Second

// Options of a Shutdown.
type Options struct {
	Kubelet *kubeletconfig.Config
	Service *service.Service
	// BootID is the kernel's name of this boot.
	BootID string
	Pods   manager.Pods
	// Delivered reports whether the API server has the newest status of a pod.
	Delivered func(uid types.UID) bool
	// Node is what the API server knows of the node, and Reference what events refer to.
	Node      func() *v1.Node
	Reference *v1.ObjectReference
	Events    record.EventRecorder
}

// Shutdown ends the pods when the machine shuts down, which waits for it. Nil ends none.
type Shutdown struct {
	Manager   *manager.Manager
	inhibitor *inhibitor.Inhibitor
	service   *service.Service
}

// New returns nil if the configuration gives the pods no time.
func New(o Options) *Shutdown {
	k, s := o.Kubelet, o.Service
	phases := manager.Phases(k)
	if len(phases) == 0 {
		return nil
	}
	d := &Shutdown{service: s}
	d.Manager = manager.New(manager.Options{
		Phases: phases, Pods: o.Pods, Delivered: o.Delivered,
		NodeReported: func() bool { return k.Standalone() || notReady(o.Node()) },
		Release:      func() { d.inhibitor.Release() },
		State:        filepath.Join(k.Node.RootDir, manager.StateFile), BootID: o.BootID,
		Node: o.Reference, Events: o.Events, Log: s.Log, Metrics: s.Metrics,
	})
	d.inhibitor = inhibitor.New(inhibitor.Options{
		Delay: manager.Total(phases), Kept: s.Kept, Changed: d.Manager.Changed, Log: s.Log, Metrics: s.Metrics,
	})
	return d
}

func notReady(n *v1.Node) bool {
	return !slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// Start asks first whether the machine shuts down, so that no pod starts again that was ended before a restart.
func (d *Shutdown) Start(ctx context.Context) {
	if d == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	if err := d.inhibitor.Look(ctx); err != nil {
		d.service.Log.Warn("it is not known whether the machine shuts down", logkey.Err, err)
	}
	d.service.Go("shutdown", d.Manager.Run)
	d.service.Go("shutdown inhibitor", d.inhibitor.Run)
}
