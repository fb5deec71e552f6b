// Package sources connects the sources of pods that the configuration names to the dispatcher.
//
// The sources are the API server, a folder of manifests, a URL, and the pods of "microlet run-pod".
package sources

import (
	"context"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/rootdir"
)

// Options of Sources.
type Options struct {
	NodeName string
	Kubelet  *kubeletconfig.Config
	Client   kubernetes.Interface
	Mirrors  Mirrors
	Events   record.EventRecorder
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Sources are those of this node.
type Sources struct {
	// Local has the pods that root runs here.
	Local *Local

	all []podSource
}

// podSource is one source of pods.
type podSource struct {
	kind podsyncv1.PodSource
	run  func(ctx context.Context, sink Sink) error
}

// New makes the sources that the configuration names.
func New(o Options) (*Sources, error) {
	metrics, err := NewMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	s, k := &Sources{}, &o.Kubelet.Kubelet
	if !o.Kubelet.Standalone() {
		s.add(podsyncv1.PodSource_POD_SOURCE_API, NewAPIServer(o.Client, o.NodeName, o.Mirrors, o.Log).Run)
	}
	if k.StaticPodPath != "" {
		s.add(podsyncv1.PodSource_POD_SOURCE_FILE, NewFile(FileOptions{
			Path:     k.StaticPodPath,
			Period:   k.FileCheckFrequency.Duration,
			NodeName: o.NodeName,
			Log:      o.Log,
			Metrics:  metrics,
		}).Run)
	}
	if k.StaticPodURL != "" {
		s.add(podsyncv1.PodSource_POD_SOURCE_HTTP, NewURL(URLOptions{
			URL:      k.StaticPodURL,
			Header:   k.StaticPodURLHeader,
			Period:   k.HTTPCheckFrequency.Duration,
			NodeName: o.NodeName,
			Events:   o.Events,
			Log:      o.Log,
			Metrics:  metrics,
		}).Run)
	}
	s.Local = NewLocal(LocalOptions{
		Dir: rootdir.Dir(o.Kubelet.Node.RootDir).LocalPods(), NodeName: o.NodeName, Taken: o.Mirrors.Source, Log: o.Log,
	})
	s.add(podsyncv1.PodSource_POD_SOURCE_LOCAL, s.Local.Run)
	return s, nil
}

func (s *Sources) add(kind podsyncv1.PodSource, run func(context.Context, Sink) error) {
	s.all = append(s.all, podSource{kind, run})
}

// Kinds are the sources that must be synced before anything is concluded from the absence of a pod.
func (s *Sources) Kinds() []podsyncv1.PodSource {
	var kinds []podsyncv1.PodSource
	for _, one := range s.all {
		kinds = append(kinds, one.kind)
	}
	return kinds
}

// Start runs the sources as tasks of the service. They report to the dispatcher.
func (s *Sources) Start(on *service.Service, dispatcher Sink) {
	for _, one := range s.all {
		on.Go("source "+Name(one.kind), func(ctx context.Context) error {
			return one.run(ctx, dispatcher)
		})
	}
}

// Names are what a log calls sources.
func Names(kinds []podsyncv1.PodSource) string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = Name(kind)
	}
	return strings.Join(names, ", ")
}
