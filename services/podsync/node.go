package podsync

import (
	"context"

	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/cri"
	"github.com/microlet/microlet/services/podsync/internal/grants"
	"github.com/microlet/microlet/services/podsync/internal/node"
	"github.com/microlet/microlet/services/podsync/internal/pods"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
	"github.com/microlet/microlet/services/podsync/internal/status"
)

// environment is what podsync works with: the API server, the machine, the runtime. The workers are part of it because
// changes in it wake them. The dispatcher, which is created last, adds them.
type environment struct {
	name    string
	client  *node.Client
	events  *outbox.Recorder
	workers *pods.Workers
	cluster *cluster.Cluster
	runtime *cri.Runtime
	node    *node.Node
	grants  *grants.Grants
	podsAPI *podsAPI
}

// newEnvironment waits for nothing but the question for the cgroup driver. The caller closes the runtime.
func newEnvironment(ctx context.Context, s *service.Service, cfg *Config) (*environment, error) {
	k := cfg.Kubelet
	name, err := k.NodeName()
	if err != nil {
		return nil, err
	}
	events := outbox.NewRecorder(s.Bus, name, s.Log)
	api, err := node.NewClient(s, k, name, events)
	if err != nil {
		return nil, err
	}
	workers := pods.NewWorkers(pods.NewMetrics(s.Metrics))
	objects, err := cluster.New(api, k, workers, s.Log)
	if err != nil {
		return nil, err
	}
	children, err := newChildren(k.Node.RootDir, s.Metrics, s.Log)
	if err != nil {
		return nil, err
	}
	runtime, err := cri.Connect(ctx, cri.Options{
		Kubelet: k, Classes: objects.RuntimeClasses, Children: children,
		Checkpoints: rootdir.Dir(k.Node.RootDir).Checkpoints(), Calls: cfg.RuntimeCalls, Service: s,
	})
	if err != nil {
		return nil, err
	}
	this, err := node.New(node.Options{
		Name: name, Client: api, Kubelet: k, Runtime: runtime.State, PodCIDRs: runtime, Bus: s.Bus, Workers: workers,
		Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		runtime.Close()
		return nil, err
	}
	granted, err := grants.New(ctx, s, workers)
	if err != nil {
		runtime.Close()
		return nil, err
	}
	socket, err := newPodsAPI(s, k)
	if err != nil {
		runtime.Close()
		return nil, err
	}
	return &environment{
		name:    name,
		client:  api,
		events:  events,
		workers: workers,
		cluster: objects,
		runtime: runtime,
		node:    this,
		grants:  granted,
		podsAPI: socket,
	}, nil
}

func (env *environment) start(ctx context.Context, s *service.Service, reports *status.Reports) error {
	s.Go("events", env.events.Run)
	env.client.Start(s, env.node.Object.Node)
	env.cluster.Start(s)
	env.node.Start(s)
	s.Go("device plugins", env.grants.Run)
	env.podsAPI.start(s)
	return env.runtime.Start(ctx, s, env.workers, reports.Node())
}
