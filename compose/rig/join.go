package rig

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/images"
)

// clusterTools are linked into the instance's folder with the control plane, for people.
var clusterTools = []string{build.Ctr, build.Kubectl}

// nodeAlone is whether Up makes a node, and no control plane.
func (o Options) nodeAlone() bool { return o.Standalone && !o.Machine }

// prepareNode is prepare for a node without a control plane.
func prepareNode(ctx context.Context, o Options) (build.Binaries, []string, error) {
	builder, err := newBuilder(o)
	if err != nil {
		return nil, nil, err
	}
	var others []string
	if o.Agent == AgentKubelet {
		others = []string{build.Kubelet}
	}
	binaries, err := builder.Node(ctx, others...)
	if err != nil {
		return nil, nil, err
	}
	layout, err := images.Build(ctx, builder.Cache, images.Input{Busybox: build.Busybox()})
	return binaries, []string{layout}, err
}

// waitStandalone waits until an agent on this machine says that it is healthy. One on a machine of its own is a service
// there, which is ready by then.
func (i *Instance) waitStandalone(ctx context.Context) error {
	if i.onMachine() {
		return nil
	}
	return i.await(ctx, AgentProgram, httpOK("http://"+loopback(i.r.Ports.AgentHealth)+"/healthz"))
}

// Join gives the standalone node of this machine a control plane: it builds one, and what Options.With names, starts
// it, and restarts the agent with credentials for it. The node's pods run on. The options are those of Up.
func (i *Instance) Join(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	binaries, layouts, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	begin := time.Now()
	i.mu.Lock()
	i.r.Binaries, i.r.Standalone = binaries, false
	err = i.r.save()
	i.mu.Unlock()
	if err != nil {
		return err
	}
	if err := i.link(i.binDir(), clusterTools); err != nil {
		return err
	}
	for _, name := range i.programs() {
		if err := i.tree.Create(i.programCgroup(name), false); err != nil {
			return err
		}
	}
	if err := i.writeKubeletConfig(o); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return i.push(groupCtx, layouts) })
	group.Go(func() error {
		if err := i.startControlPlane(groupCtx, group); err != nil {
			return err
		}
		if err := i.StopAgent(groupCtx); err != nil {
			return err
		}
		return i.StartAgent(groupCtx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := i.WaitNodeReady(ctx); err != nil {
		return err
	}
	i.printf("node %s has joined the cluster after %s", i.NodeName(), time.Since(begin).Round(100*time.Millisecond))
	return nil
}
