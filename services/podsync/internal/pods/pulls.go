package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// pull is one image that is made present. It outlives the sync that began it: a sandbox or a volume that fails must not
// end a download, and the next sync must not announce it again.
type pull[T any] struct {
	image  string
	cancel context.CancelFunc
	done   chan struct{} // closed when result and err are set
	result T
	err    error
}

// ended reports whether result and err are set.
func (p *pull[T]) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait returns the result.
func (p *pull[T]) wait(ctx context.Context) (result T, err error) {
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return result, fmt.Errorf("wait for the image: %w", context.Cause(ctx))
	}
}

// beginPull begins to make an image present; then, if it is not nil, is called when that has ended.
func beginPull[T any](w *worker, image string, ensure func(context.Context) (T, error), then func()) *pull[T] {
	ctx, cancel := context.WithCancel(tracing.Carry(w.life, w.round))
	under := &pull[T]{image: image, cancel: cancel, done: make(chan struct{})}
	w.goroutines.Go(func() {
		defer cancel()
		under.result, under.err = ensure(ctx)
		close(under.done)
		if then != nil {
			then()
		}
	})
	return under
}

// pullAll begins to make the images of these containers and of the pod's volumes present, each in its own time, and
// ends the pulls that nobody waits for any more.
func (w *worker) pullAll(p *v1.Pod, starts []decide.Start) {
	if len(starts) > 0 {
		w.pullVolumes(p)
	}
	wanted := make(map[string]bool, len(starts))
	for i := range starts {
		c := starts[i].Spec
		wanted[c.Name] = true
		if under := w.pulls[c.Name]; under != nil {
			if under.image == c.Image && (!under.ended() || under.err == nil || starts[i].Ephemeral) {
				continue
			}
			under.cancel()
		}
		w.pulls[c.Name] = w.pull(p, c, nil)
	}
	for name, under := range w.pulls {
		if !wanted[name] && !podutil.IsEphemeral(&p.Spec, name) {
			under.cancel()
			delete(w.pulls, name)
		}
	}
}

// pullVolumes begins to make the images of the pod's volumes present: of all, as the kubelet does, whoever starts.
func (w *worker) pullVolumes(p *v1.Pod) {
	for i := range p.Spec.Volumes {
		name, source := p.Spec.Volumes[i].Name, p.Spec.Volumes[i].Image
		if under := w.volumePulls[name]; source == nil || under != nil && !under.ended() {
			continue
		}
		w.volumePulls[name] = beginPull(w, source.Reference, func(ctx context.Context) (*runtimeapi.ImageSpec, error) {
			return w.deps.Images.EnsureVolume(ctx, p, source)
		}, nil)
	}
}

// startImages are what a container starts with.
type startImages struct {
	*images.Image
	// volumes are those of the image volumes that it mounts, by the volume's name.
	volumes map[string]*runtimeapi.ImageSpec
}

// volumeImageError says why the image of an image volume is not present.
type volumeImageError struct{ error }

func (e volumeImageError) Unwrap() error { return e.error }

// pull begins to make present what a container starts with: first the image volumes that it mounts, as with the
// kubelet. then, if it is not nil, is called when that has ended.
func (w *worker) pull(p *v1.Pod, c *v1.Container, then func()) *pull[startImages] {
	waits := Pulling{Image: c.Image, Began: time.Now()}
	w.notePull(c.Name, waits)
	volumes := map[string]*pull[*runtimeapi.ImageSpec]{}
	for i := range c.VolumeMounts {
		if name := c.VolumeMounts[i].Name; w.volumePulls[name] != nil {
			volumes[name] = w.volumePulls[name]
		}
	}
	return beginPull(w, c.Image, func(ctx context.Context) (present startImages, err error) {
		defer w.notePulled(c.Name, waits.Began)
		present.volumes = make(map[string]*runtimeapi.ImageSpec, len(volumes))
		for name, under := range volumes {
			w.notePull(c.Name, Pulling{Image: under.image, Began: waits.Began})
			if present.volumes[name], err = under.wait(ctx); err != nil {
				return startImages{}, volumeImageError{err}
			}
		}
		w.notePull(c.Name, waits)
		ctx, span := tracing.Start(ctx, "EnsureImageExists")
		span.Set(tracing.ContainerName, c.Name)
		span.Set(tracing.ImageName, c.Image)
		present.Image, err = w.deps.Images.Ensure(ctx, p, c)
		span.End(err)
		return present, err
	}, then)
}

// pulled waits for a container's images. The result is used once: the next start checks
// the pull policy again.
func (w *worker) pulled(ctx context.Context, name string) (startImages, error) {
	under := w.pulls[name]
	if _, err := under.wait(ctx); !under.ended() {
		return startImages{}, err
	}
	delete(w.pulls, name)
	return under.result, under.err
}

// abandonPulls ends all pulls of a pod that will start nothing more.
func (w *worker) abandonPulls() {
	for name, under := range w.pulls {
		under.cancel()
		delete(w.pulls, name)
	}
	for name, under := range w.volumePulls {
		under.cancel()
		delete(w.volumePulls, name)
	}
}
