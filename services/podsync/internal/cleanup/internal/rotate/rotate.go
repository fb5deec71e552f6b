// Package rotate rotates the logs of running containers.
//
// It renames a log that exceeds the limit of the KubeletConfiguration to <log>.<local time as 20060102-150405>, and
// has the runtime open a new file. It compresses older logs to <log>.<time>.gz or removes them. The names are the
// kubelet's, so that kubectl logs, log collectors and a kubelet find the files. It keeps the current log and at most
// containerLogMaxFiles-1 older ones, compressed except for the newest.
//
// A rotation that fails or is interrupted loses no line: the runtime continues to write to the renamed file until
// the next round repairs this. A runtime or a disk that hangs delays only logs, never a pod.
package rotate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// callTimeout bounds each call to the runtime: the next rotation must not wait for one container's shim longer than
// that.
const callTimeout = 30 * time.Second

// Runtime is what rotation asks of the container runtime.
type Runtime interface {
	List(ctx context.Context) (map[types.UID]*pod.State, error)
	LogPath(ctx context.Context, id string) (string, error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// Options of a Rotator.
type Options struct {
	Runtime Runtime
	// MaxSize is containerLogMaxSize, a quantity in bytes; negative switches rotation off.
	MaxSize string
	// MaxFiles is containerLogMaxFiles, the present log included; at least 2.
	MaxFiles int
	// Workers is containerLogMaxWorkers, how many logs are rotated at one time; at least 1.
	Workers int
	// Interval is containerLogMonitorInterval.
	Interval time.Duration
	Log      *slog.Logger
	// Metrics takes the rotator's metrics; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Rotator is the loop.
type Rotator struct {
	opts    Options
	maxSize int64
	queue   workqueue.TypedInterface[string]
	rotated *prometheus.CounterVec

	mu sync.Mutex
	// paths of the logs, which never change, by container id.
	paths map[string]string
	// ended are containers that ended before the first round: one of them may have been left
	// without its log by a crash.
	ended map[string]bool
}

// New returns a Rotator that does nothing until Run runs.
func New(o Options) (*Rotator, error) {
	size, err := resource.ParseQuantity(o.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("containerLogMaxSize=%q: %w: write a quantity such as 10Mi, or -1 for no rotation",
			o.MaxSize, err)
	}
	bytes, whole := size.AsInt64()
	switch {
	case !whole:
		return nil,
			fmt.Errorf("containerLogMaxSize=%q: it is not a whole number of bytes up to %d: write a quantity such as 10Mi",
				o.MaxSize, int64(math.MaxInt64))
	case o.MaxFiles < 2:
		return nil, fmt.Errorf("containerLogMaxFiles=%d: the present log and one more are the least: write 2 or more",
			o.MaxFiles)
	case o.Workers < 1:
		return nil, fmt.Errorf("containerLogMaxWorkers=%d: at least one worker has to rotate: write 1 or more", o.Workers)
	case o.Interval <= 0:
		return nil, fmt.Errorf("containerLogMonitorInterval=%s: write a positive duration", o.Interval)
	}
	r := &Rotator{
		opts: o, maxSize: bytes, paths: map[string]string{}, ended: map[string]bool{},
		rotated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_log_rotations_total",
			Help: "Rotations of container logs, by result: ok, failed (tried again), reopened (the log was missing).",
		}, []string{"result"}),
	}
	if o.Metrics != nil {
		if err := o.Metrics.Register(r.rotated); err != nil {
			return nil, fmt.Errorf("metrics of log rotation: %w", err)
		}
	}
	return r, nil
}

// Run rotates until ctx ends, and returns when its workers have ended.
func (r *Rotator) Run(ctx context.Context) error {
	if r.maxSize < 0 {
		r.opts.Log.Info("container logs are not rotated", "containerLogMaxSize", r.opts.MaxSize)
		return nil
	}
	r.queue = workqueue.NewTyped[string]()
	var workers sync.WaitGroup
	defer workers.Wait()
	defer r.queue.ShutDown()
	for range r.opts.Workers {
		workers.Go(func() { r.work(ctx) })
	}
	ticker := time.NewTicker(r.opts.Interval)
	defer ticker.Stop()
	for first := true; ; {
		if err := r.look(ctx, first); err == nil {
			first = false
		} else if ctx.Err() == nil {
			r.opts.Log.Error("container logs not looked at", logkey.Err, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look hands every container with a log that may need something to the workers. One that is still with a worker from
// the round before is not handed out twice.
func (r *Rotator) look(ctx context.Context, first bool) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	states, err := r.opts.Runtime.List(call)
	if err != nil {
		return err
	}
	var due []string
	present := map[string]bool{}
	r.mu.Lock()
	for _, state := range states {
		for i := range state.Containers {
			c := &state.Containers[i]
			present[c.ID] = true
			switch {
			case c.Running():
				due = append(due, c.ID)
				delete(r.ended, c.ID)
			case first && c.State == runtimeapi.ContainerState_CONTAINER_EXITED:
				due = append(due, c.ID)
				r.ended[c.ID] = true
			}
		}
	}
	for id := range r.paths {
		if !present[id] {
			delete(r.paths, id)
		}
	}
	r.mu.Unlock()
	for _, id := range due {
		r.queue.Add(id)
	}
	return nil
}

func (r *Rotator) work(ctx context.Context) {
	for {
		id, shutdown := r.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil { // what is left in the queue belongs to the next podsync
			if err := r.handle(ctx, id); err != nil && ctx.Err() == nil {
				r.rotated.WithLabelValues("failed").Inc()
				r.opts.Log.Error("container log not rotated", logkey.Container, id, logkey.Err, err)
			}
		}
		r.queue.Done(id)
	}
}

// handle looks at one container's log.
func (r *Rotator) handle(ctx context.Context, id string) error {
	path, err := r.path(ctx, id)
	if err != nil || path == "" {
		return err
	}
	r.mu.Lock()
	ended := r.ended[id]
	delete(r.ended, id)
	r.mu.Unlock()
	f, err := open(path)
	var size int64
	if err == nil {
		defer f.close()
		if ended {
			return f.restore()
		}
		size, err = f.size()
	}
	switch {
	case errors.Is(err, errMissing) && ended:
		return nil
	case errors.Is(err, errMissing):
		// A rotation was cut short after the rename, or the log was removed.
		if err := r.reopen(ctx, id); err != nil {
			return err
		}
		r.rotated.WithLabelValues("reopened").Inc()
		r.opts.Log.Warn("container log was missing, reopened it", logkey.Container, id, logkey.Path, path)
		return nil
	case err != nil:
		return err
	case size < r.maxSize:
		return nil
	}
	return r.rotate(ctx, id, f)
}

// rotate makes room and lets the runtime go on in a new file.
func (r *Rotator) rotate(ctx context.Context, id string, f *file) error {
	if err := f.tidy(r.opts.MaxFiles - 2); err != nil {
		return err
	}
	if err := f.compress(ctx, r.maxSize); err != nil {
		if ctx.Err() != nil {
			return err
		}
		// A full disk must not stop the rotation: without it the log would fill what is left.
		r.opts.Log.Error("rotated container log not compressed", logkey.Container, id, logkey.Err, err)
	}
	rotated, err := f.moveAway(time.Now())
	if err != nil {
		return err
	}
	if err := r.reopen(ctx, id); err != nil {
		return errors.Join(err, f.moveBack(rotated))
	}
	r.rotated.WithLabelValues("ok").Inc()
	return nil
}

func (r *Rotator) reopen(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.opts.Runtime.ReopenContainerLog(ctx, id)
}

// path of a container's log: one status call in a container's life.
func (r *Rotator) path(ctx context.Context, id string) (string, error) {
	r.mu.Lock()
	path, known := r.paths[id]
	r.mu.Unlock()
	if known {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	path, err := r.opts.Runtime.LogPath(ctx, id)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[id] = path
	return path, nil
}
