package podsync

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/labels"
	"github.com/microlet/microlet/services/podsync/internal/mirror"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
	"github.com/microlet/microlet/services/podsync/internal/source"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

const defaultGrace = 30 * time.Second

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

// supersede ends what the runtime has of a static pod under the UID of an earlier manifest: its containers hold the
// ports and folders that the new one needs, and no worker knows them.
func (n *node) supersede(ctx context.Context, p *v1.Pod) error {
	states, err := n.runtime.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for uid, state := range states {
		if uid == p.UID || state.Namespace != p.Namespace || state.Name != p.Name || n.workers.Known(uid) || !static(state) {
			continue
		}
		n.service.Log.Info("ending the static pod of an earlier manifest", "pod", p.Namespace+"/"+p.Name, "uid", uid, "successor", p.UID)
		errs = append(errs, n.end(ctx, state))
	}
	return errors.Join(errs...)
}

// end stops a pod's containers, each with the pod's grace period, and removes the pod.
func (n *node) end(ctx context.Context, state *pod.State) error {
	errs := make([]error, len(state.Containers))
	var all sync.WaitGroup
	for i := range state.Containers {
		c := &state.Containers[i]
		if !c.Running() {
			continue
		}
		all.Go(func() {
			grace := defaultGrace
			if seconds, err := strconv.Atoi(c.Annotations[labels.PodTerminationGracePeriod]); err == nil && seconds >= 0 {
				grace = time.Duration(seconds) * time.Second
			}
			if err := n.runtime.StopContainer(ctx, c.ID, grace); err != nil {
				errs[i] = fmt.Errorf("stop container %s: %w", c.Name, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return cleanup.Remover{Runtime: n.runtime}.Remove(ctx, state)
}

func static(state *pod.State) bool {
	for i := range state.Sandboxes {
		if from := state.Sandboxes[i].Annotations[podutil.ConfigSourceAnnotation]; from != "" && from != source.Name(podsyncv1.PodSource_POD_SOURCE_API) {
			return true
		}
	}
	return false
}

var _ worker.MirrorManager = (*mirror.Manager)(nil)
