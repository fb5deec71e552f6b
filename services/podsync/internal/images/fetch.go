package images

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

// notRecorded is the kubelet's message.
const notRecorded = "Failed to record image pull intent for container image %q: %w"

// maxUser is how many bytes the name of an image's user may have. The kernel's tools take 32.
const maxUser = 256

// credentials are what to try a pull with.
type credentials struct {
	auths []keyring.Auth
	err   error
}

// auths returns the pod's credentials for the image, then the node's, then those of plugins; none means a pull without.
func (t *task) auths(ctx context.Context) ([]keyring.Auth, error) {
	if t.credentials == nil {
		auths, err := t.lookUp(ctx)
		t.credentials = &credentials{auths, err}
	}
	return t.credentials.auths, t.credentials.err
}

func (t *task) lookUp(ctx context.Context) ([]keyring.Auth, error) {
	pods, err := keyring.FromSecrets(t.req.Secrets)
	if err != nil {
		return nil, err
	}
	auths := pods.Lookup(t.name.repository)
	if t.p.opts.RootDir != "" {
		node, err := keyring.FromNode(t.p.opts.RootDir)
		if err != nil {
			// The node's file is not this pod's fault, and may not concern its image.
			t.p.opts.Log.Warn("registry credentials of the node are not used", logkey.Err, err)
		} else {
			auths = append(auths, node.Lookup(t.name.repository)...)
		}
	}
	if t.p.opts.Plugins == nil {
		return auths, nil
	}
	more, err := t.p.opts.Plugins.Lookup(ctx, t.name.repository, t.req.Pod)
	return append(auths, more...), err
}

// fetched is an image that was pulled.
type fetched struct {
	ref string
	// id is how the runtime speaks of the image later, as far as it said so.
	id   string
	size uint64
	// auth is what the pull succeeded with; nil is nothing.
	auth *keyring.Auth
}

// recorded pulls, and leaves a record of it. A crash at any point leaves one too.
func (t *task) recorded(ctx context.Context, auths []keyring.Auth) (fetched, error) {
	if !t.p.rate.TryAccept() {
		return fetched{}, errors.New("pull QPS exceeded")
	}
	records := t.p.opts.Records
	if records == nil {
		got, _, err := t.fetch(ctx, auths)
		return got, err
	}
	if err := records.Begin(t.image); err != nil {
		return fetched{}, fmt.Errorf(notRecorded, t.image, err) //nolint:staticcheck // as the kubelet writes it
	}
	got, lost, err := t.fetch(ctx, auths)
	switch {
	case err == nil:
		records.Pulled(t.image, got.id, got.auth)
	case lost:
		records.Lost(t.image)
	default:
		records.Failed(t.image)
	}
	return got, err
}

// fetch pulls with one credential after the other until one succeeds. lost says that the runtime may have the image
// although there is an error.
func (t *task) fetch(ctx context.Context, auths []keyring.Auth) (got fetched, lost bool, err error) {
	tries := []*keyring.Auth{nil}
	if len(auths) > 0 {
		tries = tries[:0]
	}
	for i := range auths {
		tries = append(tries, &auths[i])
	}
	var errs []error
	for _, auth := range tries {
		var shown *runtimeapi.AuthConfig
		if auth != nil {
			shown = &runtimeapi.AuthConfig{Username: auth.Username, Password: auth.Password}
		}
		ref, err := t.p.opts.Runtime.PullImage(ctx, t.spec, shown, t.req.Sandbox)
		if err == nil {
			got := fetched{ref: ref, id: ref, auth: auth}
			// The size is only reported and counted, so an unknown one does no harm.
			found, err := t.p.opts.Runtime.ImageStatus(ctx, t.spec)
			if found != nil {
				got.id, got.size = found.Id, found.Size
			}
			return got, false, t.undo(ctx, found, err)
		}
		lost = lost || mayHavePulled(err)
		if ctx.Err() != nil {
			return fetched{}, true, ctx.Err()
		}
		errs = append(errs, plain(err))
	}
	if len(auths) == 0 {
		return fetched{}, lost, errs[0]
	}
	return fetched{}, lost, utilerrors.NewAggregate(errs)
}

// undo removes the image again if it could make the runtime's list of all images too large: the list has the name of
// the image's user, which may be of any length.
func (t *task) undo(ctx context.Context, found *runtimeapi.Image, err error) error {
	if len(found.GetUsername()) <= maxUser && status.Code(err) != codes.ResourceExhausted {
		return nil
	}
	t.p.metrics.undone.Inc()
	refused := fmt.Errorf("the image names a user of more than %d bytes", maxUser)
	if err := t.p.opts.Runtime.RemoveImage(ctx, t.spec); err != nil {
		refused = fmt.Errorf("%w, and is not removed: %w", refused, err)
	}
	return refused
}

// mayHavePulled reports whether an error says nothing of what the runtime did.
func mayHavePulled(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	}
	return false
}
