// Package sources delivers the pods that this node should run.
//
// A source delivers the newest version of each pod to a Sink once, and says when it has delivered its full list. Before
// that, a missing pod means nothing. The sources are the API server, a folder or file of manifests, a URL, and
// "microlet run-pod".
//
// A source refuses a pod if its UID cannot be a key of the bus, with an error that names the pod. A source that cannot
// be read removes no pod. A broken manifest does not affect others. As under the kubelet, its own pod ends when a
// relist finds the manifest broken, not while it is still being written.
package sources

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// Sink receives what sources want. Its methods may be called by several sources at a time and must not block.
type Sink interface {
	// SetPod reports a new pod or a new version of a known one.
	SetPod(p *v1.Pod, from podsyncv1.PodSource)
	// RemovePod reports that the source wants the pod no longer: its object is gone.
	RemovePod(uid types.UID, from podsyncv1.PodSource)
	// SourceSynced is called once the source has sent every pod that it had at the start.
	SourceSynced(from podsyncv1.PodSource)
}

// names are the values of kubernetes.io/config.source.
var names = map[podsyncv1.PodSource]string{
	podsyncv1.PodSource_POD_SOURCE_API:   "api",
	podsyncv1.PodSource_POD_SOURCE_FILE:  "file",
	podsyncv1.PodSource_POD_SOURCE_HTTP:  "http",
	podsyncv1.PodSource_POD_SOURCE_LOCAL: "local",
}

// Name is what a source is called in annotations, logs and metrics.
func Name(s podsyncv1.PodSource) string { return names[s] }

// Metrics of the static sources.
type Metrics struct {
	broken   *prometheus.GaugeVec
	failures *prometheus.CounterVec
}

// NewMetrics registers the sources' metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		broken: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_podsync_broken_manifests",
			Help: "Manifests of static pods that cannot be used now, by source.",
		}, []string{"source"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_source_failures_total",
			Help: "Reads of a static pod source that failed, by source.",
		}, []string{"source"}),
	}
	return m, errors.Join(r.Register(m.broken), r.Register(m.failures))
}

// seenNow is the form of kubernetes.io/config.seen.
func seenNow() string { return time.Now().Format(time.RFC3339Nano) }

// set is what a static source wants now.
type set struct {
	from podsyncv1.PodSource
	sink Sink
	log  *slog.Logger

	pods   map[types.UID]*v1.Pod
	synced bool
	// duplicates are the names that were reported to be there twice.
	duplicates map[types.NamespacedName]bool
}

func newSet(from podsyncv1.PodSource, sink Sink, log *slog.Logger) *set {
	return &set{
		from:       from,
		sink:       sink,
		log:        log.With(logkey.Source, Name(from)),
		pods:       map[types.UID]*v1.Pod{},
		duplicates: map[types.NamespacedName]bool{},
	}
}

// replace reports to the sink how the wanted pods differ from those of before: ends first, so that a pod can follow
// another of its name. The first call completes the source.
func (s *set) replace(pods []*v1.Pod) {
	wanted := map[types.UID]*v1.Pod{}
	for _, p := range pods {
		wanted[p.UID] = p
	}
	for uid := range s.pods {
		if wanted[uid] == nil {
			s.sink.RemovePod(uid, s.from)
			delete(s.pods, uid)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(wanted)) {
		s.set(wanted[uid])
	}
	if !s.synced {
		s.synced = true
		s.sink.SourceSynced(s.from)
	}
}

func (s *set) set(p *v1.Pod) {
	var seen string
	if old := s.pods[p.UID]; old != nil {
		seen = old.Annotations[manifest.SeenAnnotation]
	} else {
		seen = seenNow()
	}
	p = manifest.Annotate(p, Name(s.from), seen)
	if old := s.pods[p.UID]; old != nil && equality.Semantic.DeepEqual(old, p) {
		return
	}
	s.pods[p.UID] = p
	s.sink.SetPod(p, s.from)
}

// unique keeps one pod of each name, the first or the last of them, and names those that it drops once.
func (s *set) unique(pods []*v1.Pod, keepLast bool, dropped func(p *v1.Pod)) []*v1.Pod {
	at := map[types.NamespacedName]int{}
	var kept []*v1.Pod
	twice := map[types.NamespacedName]bool{}
	for _, p := range pods {
		name := manifest.FullName(p)
		i, double := at[name]
		if !double {
			at[name] = len(kept)
			kept = append(kept, p)
			continue
		}
		twice[name] = true
		lost := p
		if keepLast {
			lost, kept[i] = kept[i], p
		}
		if !s.duplicates[name] && dropped != nil {
			dropped(lost)
		}
	}
	s.duplicates = twice
	return kept
}
