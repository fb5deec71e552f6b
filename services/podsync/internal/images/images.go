package images

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/images/internal/pullrecords"
)

// Present returns images that are present.
type Present interface {
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
	puller  *Puller
	records *pullrecords.Records // nil: no image is verified
	// needsUser reports whether admission needs the user of a pod's images.
	needsUser func(p *v1.Pod) bool
	runtime   Present
	secrets   Secrets
	events    record.EventRecorder
}

var _ pullrecords.Images = (*Images)(nil)

// Image is a present image.
type Image struct {
	// Ref is what CRI creates the container with.
	Ref string
	// UID and User are what the image runs as, a number or a name. They are known where the pod says nothing and it
	// decides whether the container may run.
	UID  *int64
	User string
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

// EnsureVolume makes the image of an image volume present, and returns what CRI mounts.
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

// Ensure makes the image of a container present. Its error is an *Error, or that of the context.
func (i *Images) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*Image, error) {
	secrets, err := i.pullSecrets(ctx, p)
	if err != nil {
		return nil, err
	}
	ref, err := i.puller.Ensure(ctx, p, c, nil, secrets)
	if err != nil {
		return nil, err
	}
	present := &Image{Ref: ref}
	if !mustNotBeRoot(p, c) && !i.needsUser(p) {
		return present, nil
	}
	found, err := i.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref})
	if err != nil {
		return nil, err
	}
	present.UID, present.User = User(found)
	return present, nil
}

// BackOff returns when the next pull of an image for a pod may begin; see Puller.
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
	found, err := i.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: PullName(name)})
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

// User returns what an image runs as when the pod does not say: a number, or a name that only the image can resolve. An
// image that says nothing runs as root.
func User(image *runtimeapi.Image) (uid *int64, user string) {
	if image.GetUid() != nil {
		return &image.GetUid().Value, ""
	}
	if image.GetUsername() != "" {
		return nil, image.GetUsername()
	}
	return new(int64), ""
}
