// Package crilist reads the lists of a container runtime, however large they are.
//
// A list of CRI is one message, and a runtime refuses to send one that is larger than its limit: 16 MiB, unless its
// configuration says otherwise. The labels and annotations of pods alone can be larger than that. A list that is
// refused is read another way, and for a minute after that it is not asked for as a whole.
//
// podsync, which alone has the runtime's socket, asks pod by pod and sandbox by sandbox. The other services ask
// podsync's CRI gateway for a stream, which it fills that way. The runtime's own streams of sandboxes and containers
// are not used: containerd puts up to 5000 items into one message of a stream, which is then as large as the list.
//
// An error is the last element of a list. What came before it is then not the whole list.
package crilist

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// again is how long a list that was too large is not asked for as a whole.
const again = time.Minute

// Options of a Lister.
type Options struct {
	// Pods returns the UIDs of all pods that may have a sandbox, for who asks the runtime itself. Nil asks for streams.
	Pods func() ([]string, error)
	// Log; nil stands for the default logger.
	Log *slog.Logger
	// Metrics takes the number of lists that were too large; nil leaves it unregistered.
	Metrics prometheus.Registerer
}

// Lister reads lists. It is safe for concurrent use.
type Lister struct {
	runtime  runtimeapi.RuntimeServiceClient
	images   runtimeapi.ImageServiceClient
	opts     Options
	tooLarge *prometheus.CounterVec

	mu sync.Mutex
	// refused says when the runtime refused to send a list last, by the list's name.
	refused map[string]time.Time
	// sandboxes and strangers are of the last list of all sandboxes that came whole: their IDs by the UIDs of their pods,
	// and the IDs of those that have no pod.
	sandboxes map[string][]string
	strangers []string
}

// New returns a Lister over the connections to the two services of a runtime.
func New(rt, images grpc.ClientConnInterface, o Options) *Lister {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	l := &Lister{
		runtime: runtimeapi.NewRuntimeServiceClient(rt), images: runtimeapi.NewImageServiceClient(images), opts: o,
		refused: map[string]time.Time{},
		tooLarge: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_cri_lists_too_large_total",
			Help: "Lists of the runtime that were larger than one message and were read in parts.",
		}, []string{"list"}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(l.tooLarge)
	}
	return l
}

// Sandboxes lists the sandboxes that a filter matches; nil matches all.
func (l *Lister) Sandboxes(ctx context.Context,
	f *runtimeapi.PodSandboxFilter) iter.Seq2[*runtimeapi.PodSandbox, error] {
	items := func(r *runtimeapi.ListPodSandboxResponse) []*runtimeapi.PodSandbox {
		if f == nil {
			l.remember(r.GetItems())
		}
		return r.GetItems()
	}
	return read(l, "sandboxes", f == nil,
		message(ctx, l.runtime.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: f}, items),
		either(l, l.sandboxParts(ctx, f), stream(ctx, l.runtime.StreamPodSandboxes,
			&runtimeapi.StreamPodSandboxesRequest{Filter: f},
			(*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes)))
}

// Containers lists the containers that a filter matches, ended ones too; nil matches all.
func (l *Lister) Containers(ctx context.Context,
	f *runtimeapi.ContainerFilter) iter.Seq2[*runtimeapi.Container, error] {
	return read(l, "containers", f == nil,
		message(ctx, l.runtime.ListContainers, &runtimeapi.ListContainersRequest{Filter: f},
			(*runtimeapi.ListContainersResponse).GetContainers),
		either(l, l.containerParts(ctx, f), stream(ctx, l.runtime.StreamContainers,
			&runtimeapi.StreamContainersRequest{Filter: f}, (*runtimeapi.StreamContainersResponse).GetContainers)))
}

// SandboxStats lists what the sandboxes that a filter matches use; nil matches all.
func (l *Lister) SandboxStats(ctx context.Context,
	f *runtimeapi.PodSandboxStatsFilter) iter.Seq2[*runtimeapi.PodSandboxStats, error] {
	return read(l, "sandbox_stats", f == nil,
		message(ctx, l.runtime.ListPodSandboxStats, &runtimeapi.ListPodSandboxStatsRequest{Filter: f},
			(*runtimeapi.ListPodSandboxStatsResponse).GetStats),
		either(l, l.sandboxStatsParts(ctx, f), stream(ctx, l.runtime.StreamPodSandboxStats,
			&runtimeapi.StreamPodSandboxStatsRequest{Filter: f},
			(*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats)))
}

// ContainerStats lists what the running containers that a filter matches use; nil matches all.
func (l *Lister) ContainerStats(ctx context.Context,
	f *runtimeapi.ContainerStatsFilter) iter.Seq2[*runtimeapi.ContainerStats, error] {
	return read(l, "container_stats", f == nil,
		message(ctx, l.runtime.ListContainerStats, &runtimeapi.ListContainerStatsRequest{Filter: f},
			(*runtimeapi.ListContainerStatsResponse).GetStats),
		either(l, l.containerStatsParts(ctx, f), stream(ctx, l.runtime.StreamContainerStats,
			&runtimeapi.StreamContainerStatsRequest{Filter: f},
			(*runtimeapi.StreamContainerStatsResponse).GetContainerStats)))
}

// SandboxMetrics lists the runtime's metrics of all sandboxes. Too many are read as the runtime's stream.
func (l *Lister) SandboxMetrics(ctx context.Context) iter.Seq2[*runtimeapi.PodSandboxMetrics, error] {
	return read(l, "sandbox_metrics", true,
		message(ctx, l.runtime.ListPodSandboxMetrics, &runtimeapi.ListPodSandboxMetricsRequest{},
			(*runtimeapi.ListPodSandboxMetricsResponse).GetPodMetrics),
		stream(ctx, l.runtime.StreamPodSandboxMetrics, &runtimeapi.StreamPodSandboxMetricsRequest{},
			(*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics))
}

// Images lists all images. Too many are read as the runtime's stream.
func (l *Lister) Images(ctx context.Context) iter.Seq2[*runtimeapi.Image, error] {
	return read(l, "images", true,
		message(ctx, l.images.ListImages, &runtimeapi.ListImagesRequest{},
			(*runtimeapi.ListImagesResponse).GetImages),
		stream(ctx, l.images.StreamImages, &runtimeapi.StreamImagesRequest{},
			(*runtimeapi.StreamImagesResponse).GetImages))
}

// Collect returns a list as a slice.
func Collect[T any](list iter.Seq2[T, error]) ([]T, error) {
	var items []T
	for item, err := range list {
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// read returns a list as a whole, or the other way if that is too large. all says that it is the list without a filter.
func read[T any](l *Lister, name string, all bool, whole func() ([]T, error),
	other iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if !all || !l.isTooLarge(name) {
			items, err := whole()
			if status.Code(err) != codes.ResourceExhausted {
				give(items, err, yield)
				return
			}
			l.refuse(name, err)
		}
		l.tooLarge.WithLabelValues(name).Inc()
		other(yield)
	}
}

// message reads a list that is one message.
func message[Q, R, T any](ctx context.Context, call func(context.Context, Q, ...grpc.CallOption) (R, error), request Q,
	items func(R) []T) func() ([]T, error) {
	return func() ([]T, error) {
		answer, err := call(ctx, request)
		if err != nil {
			return nil, err
		}
		return items(answer), nil
	}
}

// either returns the way in which a list is read that is too large.
func either[T any](l *Lister, parts, stream iter.Seq2[T, error]) iter.Seq2[T, error] {
	if l.opts.Pods != nil {
		return parts
	}
	return stream
}

// give yields items, or an error if there is one. It reports whether more is wanted.
func give[T any](items []T, err error, yield func(T, error) bool) bool {
	if err != nil {
		var none T
		yield(none, err)
		return false
	}
	for _, item := range items {
		if !yield(item, nil) {
			return false
		}
	}
	return true
}

// stream returns what a stream of lists brings.
func stream[Q, R, T any](ctx context.Context,
	open func(context.Context, Q, ...grpc.CallOption) (grpc.ServerStreamingClient[R], error), request Q,
	items func(*R) []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		lists, err := open(ctx, request)
		for err == nil {
			var list *R
			if list, err = lists.Recv(); err == nil && !give(items(list), nil, yield) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			give(nil, err, yield)
		}
	}
}

// isTooLarge reports whether a list was refused within the last minute.
func (l *Lister) isTooLarge(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.refused[name]
	return ok && time.Since(at) < again
}

// refuse notes that the runtime refused to send a list, and logs it once a minute.
func (l *Lister) refuse(name string, err error) {
	known := l.isTooLarge(name)
	l.mu.Lock()
	l.refused[name] = time.Now()
	l.mu.Unlock()
	if !known {
		l.opts.Log.Warn("a list of the runtime is larger than one message, reading it in parts", "list", name,
			logkey.Err, err)
	}
}
