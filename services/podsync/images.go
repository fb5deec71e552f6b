package podsync

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/image"
	"github.com/microlet/microlet/services/podsync/internal/objects"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// images brings a pod's pull secrets and an image's user to where they are needed.
type images struct {
	puller  *image.Puller
	runtime *runtime.Runtime
	objects *objects.Store
	events  record.EventRecorder
}

var _ worker.Images = (*images)(nil)

// Ensure implements worker.Images.
func (i *images) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*worker.Image, error) {
	secrets, missing, err := i.objects.PullSecrets(ctx, p)
	if err != nil {
		return nil, err // the pod has ended, or podsync has
	}
	if len(missing) > 0 {
		// The image may need none of them, or be here already, so this goes on.
		i.events.Eventf(p, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
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

// mustNotBeRoot says whether the image's own user decides if the container may run.
func mustNotBeRoot(p *v1.Pod, c *v1.Container) bool {
	is := func(b *bool) bool { return b != nil && *b }
	if s := c.SecurityContext; s != nil && s.RunAsNonRoot != nil {
		return is(s.RunAsNonRoot)
	}
	return p.Spec.SecurityContext != nil && is(p.Spec.SecurityContext.RunAsNonRoot)
}
