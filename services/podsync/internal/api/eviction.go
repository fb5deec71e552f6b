package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/podsync/internal/eviction"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Evictor ends pods; see eviction.Evictor.
type Evictor interface {
	Evict(ctx context.Context, r eviction.Request) error
}

// DeadContainers removes those of pods that have ended; see cleanup.Cleanup.
type DeadContainers interface {
	RemoveDead(ctx context.Context) (int, error)
}

// evictions answers evictor.
type evictions struct {
	podsyncv1.UnimplementedEvictionServiceServer
	evictor Evictor
	dead    DeadContainers
}

// Evict implements podsyncv1.EvictionServiceServer.
func (e *evictions) Evict(ctx context.Context, r *podsyncv1.EvictRequest) (*podsyncv1.EvictResponse, error) {
	if err := checkEvict(r); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	err := e.evictor.Evict(ctx, eviction.Request{
		UID: types.UID(r.GetPodUid()), Message: r.GetMessage(), GraceSeconds: r.GetGracePeriodSeconds(),
		Annotations: r.GetAnnotations(), DisruptionTarget: r.GetDisruptionTarget(), Limit: limitOf(r.GetExceededLimit()),
	})
	code := codes.Internal
	switch {
	case err == nil:
		return &podsyncv1.EvictResponse{}, nil
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // the Evictor's own time has passed
		return &podsyncv1.EvictResponse{Stopping: true}, nil
	case errors.Is(err, pod.ErrUnknown):
		code = codes.NotFound
	case errors.Is(err, eviction.ErrCritical), errors.Is(err, eviction.ErrWithinLimit):
		code = codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = codes.DeadlineExceeded
	}
	return nil, status.Error(code, err.Error())
}

func limitOf(l *podsyncv1.ExceededLimit) *eviction.Limit {
	if l == nil {
		return nil
	}
	return &eviction.Limit{EmptyDir: l.GetEmptyDir(), Container: l.GetContainer(), UsedBytes: l.GetUsedBytes()}
}

func checkEvict(r *podsyncv1.EvictRequest) error {
	if err := subject.ValidToken(r.GetPodUid()); err != nil {
		return fmt.Errorf("pod_uid: %w", err)
	}
	if n := len(r.GetMessage()); n == 0 || n > podsyncv1.MaxEvictMessage {
		return fmt.Errorf("message has %d bytes: give 1 to %d", n, podsyncv1.MaxEvictMessage)
	}
	if g := r.GetGracePeriodSeconds(); g > podsyncv1.MaxEvictGracePeriodSeconds {
		return fmt.Errorf("grace_period_seconds is %d: give at most %d", g, podsyncv1.MaxEvictGracePeriodSeconds)
	}
	if n := len(r.GetAnnotations()); n > podsyncv1.MaxEvictAnnotations {
		return fmt.Errorf("annotations has %d entries: give at most %d", n, podsyncv1.MaxEvictAnnotations)
	}
	for key, value := range r.GetAnnotations() {
		if len(key)+len(value) > podsyncv1.MaxEvictAnnotation {
			return fmt.Errorf("annotations[%.64q] has %d bytes: give at most %d", key, len(key)+len(value),
				podsyncv1.MaxEvictAnnotation)
		}
	}
	return nil
}

// RemoveDeadContainers implements podsyncv1.EvictionServiceServer.
func (e *evictions) RemoveDeadContainers(ctx context.Context,
	_ *podsyncv1.RemoveDeadContainersRequest) (*podsyncv1.RemoveDeadContainersResponse, error) {
	n, err := e.dead.RemoveDead(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%d dead containers were removed, and then: %v", n, err)
	}
	return &podsyncv1.RemoveDeadContainersResponse{Removed: int32(n)}, nil
}
