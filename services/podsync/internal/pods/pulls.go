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

// pulls are the images that are made present for a pod. They belong to the goroutine of run.
type pulls struct {
	images   Images
	standing *standing
	tasks    *tasks

	ofContainers map[string]*pull[startImages]
	ofVolumes    map[string]*pull[*runtimeapi.ImageSpec]
}

func newPulls(from Images, s *standing, t *tasks) *pulls {
	return &pulls{
		images: from, standing: s, tasks: t, ofContainers: map[string]*pull[startImages]{},
		ofVolumes: map[string]*pull[*runtimeapi.ImageSpec]{},
	}
}

// pull is one image that is made present. It outlives the sync that began it: a sandbox or a volume that fails must not
// end a download, and the next sync must not announce it again.
type pull[T any] struct {
	*task
	image string
	// result and err are set when the task has ended.
	result T
	err    error
}

// wait returns the result.
func (p *pull[T]) wait(ctx context.Context) (result T, err error) {
	if p.ended() {
		return p.result, p.err
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return result, fmt.Errorf("wait for the image: %w", context.Cause(ctx))
	}
}

// beginPull begins to make an image present. It calls then, if that is not nil, when the pull has ended.
func beginPull[T any](ctx context.Context, t *tasks, image string, ensure func(context.Context) (T, error),
	then func()) *pull[T] {
	under := &pull[T]{image: image}
	under.task = t.begin(ctx, func(ctx context.Context) { under.result, under.err = ensure(ctx) }, then)
	return under
}

// begin begins to make the images of these containers and of the pod's volumes present, each in its own time. It ends
// the pulls for which no container waits any more.
func (all *pulls) begin(ctx context.Context, p *v1.Pod, starts []decide.Start) {
	if len(starts) > 0 {
		all.beginVolumes(ctx, p)
	}
	wanted := make(map[string]bool, len(starts))
	for i := range starts {
		c := starts[i].Spec
		wanted[c.Name] = true
		if under := all.ofContainers[c.Name]; under != nil {
			if under.image == c.Image && (!under.ended() || under.err == nil || starts[i].Ephemeral) {
				continue
			}
			under.cancel()
		}
		all.ofContainers[c.Name] = all.beginContainer(ctx, p, c, nil)
	}
	for name, under := range all.ofContainers {
		if !wanted[name] && !podutil.IsEphemeral(&p.Spec, name) {
			under.cancel()
			delete(all.ofContainers, name)
		}
	}
}

// beginEphemeral begins the pulls of an ephemeral container, unless they have begun, and reports whether they have
// ended. It calls then when they end.
func (all *pulls) beginEphemeral(ctx context.Context, p *v1.Pod, c *v1.Container, then func()) (ended bool) {
	if all.ofContainers[c.Name] == nil {
		all.beginVolumes(ctx, p)
		all.ofContainers[c.Name] = all.beginContainer(ctx, p, c, then)
	}
	return all.ofContainers[c.Name].ended()
}

// beginVolumes begins to make the images of all of the pod's volumes present, whichever containers start. The kubelet
// does so, too.
func (all *pulls) beginVolumes(ctx context.Context, p *v1.Pod) {
	for i := range p.Spec.Volumes {
		name, source := p.Spec.Volumes[i].Name, p.Spec.Volumes[i].Image
		if under := all.ofVolumes[name]; source == nil || under != nil && !under.ended() {
			continue
		}
		all.ofVolumes[name] = beginPull(ctx, all.tasks, source.Reference,
			func(ctx context.Context) (*runtimeapi.ImageSpec, error) {
				return all.images.EnsureVolume(ctx, p, source)
			}, nil)
	}
}

// startImages are what a container starts with.
type startImages struct {
	*images.Image
	// volumes are those of the image volumes that it mounts, by the volume's name.
	volumes map[string]*runtimeapi.ImageSpec
}

// volumeImageError is why the image of an image volume is not present.
type volumeImageError struct{ error }

func (e volumeImageError) Unwrap() error { return e.error }

// beginContainer begins to make present what a container starts with. The image volumes that it mounts come first, as
// under the kubelet.
func (all *pulls) beginContainer(ctx context.Context, p *v1.Pod, c *v1.Container, then func()) *pull[startImages] {
	waits := Pulling{Image: c.Image, Began: time.Now()}
	all.standing.notePull(c.Name, waits)
	volumes := map[string]*pull[*runtimeapi.ImageSpec]{}
	for i := range c.VolumeMounts {
		if name := c.VolumeMounts[i].Name; all.ofVolumes[name] != nil {
			volumes[name] = all.ofVolumes[name]
		}
	}
	return beginPull(ctx, all.tasks, c.Image, func(ctx context.Context) (present startImages, err error) {
		defer all.standing.notePulled(c.Name, waits.Began)
		present.volumes = make(map[string]*runtimeapi.ImageSpec, len(volumes))
		for name, under := range volumes {
			all.standing.notePull(c.Name, Pulling{Image: under.image, Began: waits.Began})
			if present.volumes[name], err = under.wait(ctx); err != nil {
				return startImages{}, volumeImageError{err}
			}
		}
		all.standing.notePull(c.Name, waits)
		ctx, span := tracing.Start(ctx, "EnsureImageExists")
		span.Set(tracing.ContainerName, c.Name)
		span.Set(tracing.ImageName, c.Image)
		present.Image, err = all.images.Ensure(ctx, p, c)
		span.End(err)
		return present, err
	}, then)
}

// take waits for a container's images. It returns the result once: the next start applies the pull policy again.
func (all *pulls) take(ctx context.Context, name string) (startImages, error) {
	under := all.ofContainers[name]
	if _, err := under.wait(ctx); !under.ended() {
		return startImages{}, err
	}
	delete(all.ofContainers, name)
	return under.result, under.err
}

// abandon ends all pulls of a pod that will start nothing more.
func (all *pulls) abandon() {
	for name, under := range all.ofContainers {
		under.cancel()
		delete(all.ofContainers, name)
	}
	for name, under := range all.ofVolumes {
		under.cancel()
		delete(all.ofVolumes, name)
	}
}
