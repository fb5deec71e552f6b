package podsync

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/mirror"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
	"github.com/microlet/microlet/services/podsync/internal/source"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// podSource is one source of pods.
type podSource struct {
	kind podsyncv1.PodSource
	run  func(ctx context.Context, sink source.Sink) error
}

// buildSources makes the sources that the configuration names, and what mirrors the static ones.
func (n *node) buildSources() error {
	o := mirror.Options{NodeName: n.name, Log: n.service.Log, Metrics: n.service.Metrics}
	if !n.standalone() {
		o.API, o.Statuses = mirror.NewAPI(n.client), n.statuses
	}
	var err error
	if n.mirrors, err = mirror.New(o); err != nil {
		return err
	}
	metrics, err := source.NewMetrics(n.service.Metrics)
	if err != nil {
		return err
	}
	k := &n.cfg.Kubelet.Kubelet
	if !n.standalone() {
		n.sources = append(n.sources, podSource{podsyncv1.PodSource_POD_SOURCE_API,
			source.NewAPIServer(n.client, n.name, n.mirrors, n.service.Log).Run})
	}
	if k.StaticPodPath != "" {
		n.sources = append(n.sources, podSource{podsyncv1.PodSource_POD_SOURCE_FILE, source.NewFile(source.FileOptions{
			Path: k.StaticPodPath, Period: k.FileCheckFrequency.Duration, NodeName: n.name, Log: n.service.Log, Metrics: metrics,
		}).Run})
	}
	if k.StaticPodURL != "" {
		n.sources = append(n.sources, podSource{podsyncv1.PodSource_POD_SOURCE_HTTP, source.NewURL(source.URLOptions{
			URL: k.StaticPodURL, Header: k.StaticPodURLHeader, Period: k.HTTPCheckFrequency.Duration, NodeName: n.name,
			Events: n.events, Log: n.service.Log, Metrics: metrics,
		}).Run})
	}
	n.local = source.NewLocal(source.LocalOptions{
		Dir: rootdir.Dir(n.cfg.Kubelet.Node.RootDir).LocalPods(), NodeName: n.name, Taken: n.mirrors.Source, Log: n.service.Log,
	})
	n.sources = append(n.sources, podSource{podsyncv1.PodSource_POD_SOURCE_LOCAL, n.local.Run})
	return nil
}

// startSources lets each source tell the dispatcher, and those of static pods the mirrors too.
func (n *node) startSources() {
	for _, s := range n.sources {
		n.service.Go("source "+source.Name(s.kind), func(ctx context.Context) error { return s.run(ctx, sink{n}) })
	}
	if n.standalone() {
		return
	}
	n.service.Go("node object", n.object.Run)
	n.service.Go("statuses", n.statuses.Run)
	n.service.Go("services", n.services.run)
	n.service.Go("mirrors", n.mirrors.Run)
}

// sourceKinds are who must be heard before anything is concluded from a pod's absence.
func (n *node) sourceKinds() []podsyncv1.PodSource {
	var kinds []podsyncv1.PodSource
	for _, s := range n.sources {
		kinds = append(kinds, s.kind)
	}
	return kinds
}

func sourceNames(kinds []podsyncv1.PodSource) string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = source.Name(kind)
	}
	return strings.Join(names, ", ")
}

// sink is where sources tell.
type sink struct{ n *node }

var _ source.Sink = sink{}

// SetPod implements source.Sink.
func (s sink) SetPod(p *v1.Pod, from podsyncv1.PodSource) {
	if source.Static(from) {
		s.n.mirrors.Want(p)
	}
	s.n.dispatcher.SetPod(p, from)
}

// RemovePod implements source.Sink. The mirror of a static pod goes when nothing of the pod is left.
func (s sink) RemovePod(uid types.UID, from podsyncv1.PodSource) { s.n.dispatcher.RemovePod(uid, from) }

// SourceSynced implements source.Sink.
func (s sink) SourceSynced(from podsyncv1.PodSource) { s.n.dispatcher.SourceSynced(from) }

var _ worker.MirrorManager = (*mirror.Manager)(nil)
