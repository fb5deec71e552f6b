// Package podimages makes the images of a pod's containers available on the node.
//
// It reads the pull secrets of the pod and returns the image reference. Where it matters for admission, it also
// returns the user of the image. An event reports a secret that cannot be read. The other secrets are still used.
package podimages

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/image"
	"github.com/microlet/microlet/services/podsync/internal/image/pullrecords"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// Runtime returns images that are present.
type Runtime interface {
	ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
}

// Secrets reads pull secrets.
type Secrets interface {
	// PullSecrets returns those that a pod names, and the names of those that cannot be read.
	PullSecrets(ctx context.Context, p *v1.Pod) (secrets []v1.Secret, missing []string, err error)
}

// Images makes images present.
type Images struct {
	puller  *image.Puller
	runtime Runtime
	secrets Secrets
	events  record.EventRecorder
}

var (
	_ worker.Images      = (*Images)(nil)
	_ pullrecords.Images = (*Images)(nil)
)

// New returns Images that puller pulls.
func New(puller *image.Puller, runtime Runtime, secrets Secrets, events record.EventRecorder) *Images {
	return &Images{puller: puller, runtime: runtime, secrets: secrets, events: events}
}

// pullSecrets returns those of the pod that can be read. Its error is that the pod has ended, or podsync has.
func (i *Images) pullSecrets(ctx context.Context, p *v1.Pod) ([]v1.Secret, error) {
	secrets, missing, err := i.secrets.PullSecrets(ctx, p)
	if err == nil && len(missing) > 0 {
		// The image may need none of them, or be here already, so this goes on.
		i.events.Eventf(p, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
			strings.Join(missing, ", "))
	}
	return secrets, err
}

// EnsureVolume implements worker.Images.
func (i *Images) EnsureVolume(ctx context.Context, p *v1.Pod, v *v1.ImageVolumeSource) (*runtimeapi.ImageSpec, error) {
	secrets, err := i.pullSecrets(ctx, p)
	if err != nil {
		return nil, err
	}
	ref, err := i.puller.EnsureVolume(ctx, p, v, secrets)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: v.Reference, Annotations: p.Annotations}, nil
}

// Ensure implements worker.Images.
func (i *Images) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*worker.Image, error) {
	secrets, err := i.pullSecrets(ctx, p)
	if err != nil {
		return nil, err
	}
	ref, err := i.puller.Ensure(ctx, p, c, nil, secrets)
	if err != nil {
		return nil, err
	}
	present := &worker.Image{Ref: ref}
	if !mustNotBeRoot(p, c) && !admission.ReachesHost(p) {
		return present, nil
	}
	found, err := i.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref})
	if err != nil {
		return nil, err
	}
	present.UID, present.User = podconfig.ImageUser(found)
	return present, nil
}

// BackOff returns when the next pull of an image for a pod may begin; see image.Puller.
func (i *Images) BackOff(uid types.UID, image string) (until time.Time, lastError string, ok bool) {
	return i.puller.BackOff(uid, image)
}

// ImageRefs implements pullrecords.Images.
func (i *Images) ImageRefs(ctx context.Context) ([]string, error) {
	images, err := i.runtime.ListImages(ctx)
	refs := make([]string, 0, len(images))
	for _, found := range images {
		refs = append(refs, found.GetId())
	}
	return refs, err
}

// ImageRef implements pullrecords.Images.
func (i *Images) ImageRef(ctx context.Context, name string) (string, error) {
	found, err := i.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image.PullName(name)})
	return found.GetId(), err
}

// mustNotBeRoot reports whether the image's own user decides if the container may run.
func mustNotBeRoot(p *v1.Pod, c *v1.Container) bool {
	is := func(b *bool) bool { return b != nil && *b }
	if s := c.SecurityContext; s != nil && s.RunAsNonRoot != nil {
		return is(s.RunAsNonRoot)
	}
	return p.Spec.SecurityContext != nil && is(p.Spec.SecurityContext.RunAsNonRoot)
}
