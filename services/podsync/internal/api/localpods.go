package api

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/sources"
)

// LocalPods are the pods that root runs here; see sources.Local.
type LocalPods interface {
	Add(ctx context.Context, manifest []byte) (*v1.Pod, podsyncv1.RunPodResponse_Outcome, error)
	Remove(ctx context.Context, namespace, name string) (*v1.Pod, error)
	List(ctx context.Context) ([]*v1.Pod, error)
}

// Mirrors know the statuses of static pods; see mirror.Manager.
type Mirrors interface {
	// Get returns a static pod and its last status; nil of what is not known.
	Get(uid types.UID) (*v1.Pod, *v1.PodStatus)
}

// localPods answers those who run pods on the node itself. Only root may ask: a pod can be anything, root with every
// capability too.
type localPods struct {
	podsyncv1.UnimplementedLocalPodServiceServer
	pods    LocalPods
	mirrors Mirrors
}

// RunPod implements podsyncv1.LocalPodServiceServer.
func (l *localPods) RunPod(ctx context.Context, r *podsyncv1.RunPodRequest) (*podsyncv1.RunPodResponse, error) {
	p, outcome, err := l.pods.Add(ctx, r.GetManifest())
	if err != nil {
		return nil, asStatus(err)
	}
	return &podsyncv1.RunPodResponse{Pod: localPod(p), Outcome: outcome}, nil
}

// RemovePod implements podsyncv1.LocalPodServiceServer.
func (l *localPods) RemovePod(ctx context.Context,
	r *podsyncv1.RemovePodRequest) (*podsyncv1.RemovePodResponse, error) {
	p, err := l.pods.Remove(ctx, r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, asStatus(err)
	}
	return &podsyncv1.RemovePodResponse{Pod: localPod(p)}, nil
}

// GetLocalPod implements podsyncv1.LocalPodServiceServer. It also returns a pod that is ending.
func (l *localPods) GetLocalPod(ctx context.Context,
	r *podsyncv1.GetLocalPodRequest) (*podsyncv1.GetLocalPodResponse, error) {
	p, reported := l.mirrors.Get(types.UID(r.GetUid()))
	if p == nil { // the dispatcher may not have announced it yet
		wanted, err := l.pods.List(ctx)
		if err != nil {
			return nil, asStatus(err)
		}
		i := slices.IndexFunc(wanted, func(p *v1.Pod) bool { return p.UID == types.UID(r.GetUid()) })
		if i < 0 {
			return nil, status.Errorf(codes.NotFound, "nothing of pod %s is on this node", r.GetUid())
		}
		p = wanted[i]
	}
	answer := &podsyncv1.GetLocalPodResponse{Pod: localPod(p)}
	if reported != nil {
		var err error
		if answer.Status, err = reported.Marshal(); err != nil {
			return nil, status.Errorf(codes.Internal, "encode the pod's status: %v", err)
		}
	}
	return answer, nil
}

// ListLocalPods implements podsyncv1.LocalPodServiceServer.
func (l *localPods) ListLocalPods(ctx context.Context,
	_ *podsyncv1.ListLocalPodsRequest) (*podsyncv1.ListLocalPodsResponse, error) {
	pods, err := l.pods.List(ctx)
	if err != nil {
		return nil, asStatus(err)
	}
	answer := &podsyncv1.ListLocalPodsResponse{}
	for _, p := range pods {
		answer.Pods = append(answer.Pods, localPod(p))
	}
	return answer, nil
}

func localPod(p *v1.Pod) *podsyncv1.LocalPod {
	return &podsyncv1.LocalPod{Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID)}
}

func asStatus(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, sources.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, sources.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, sources.ErrConflict):
		code = codes.AlreadyExists
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = codes.Unavailable
	}
	return status.Error(code, err.Error())
}
