// Package explain serves what podsync knows of pods and why one is not running.
//
// It reads copies of what the workers note, so an answer comes although a worker hangs. Only root may ask.
package explain

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/allocation"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pods"
	"github.com/microlet/microlet/services/podsync/internal/sources"
)

// Workers know how far each pod is; see pods.Workers.
type Workers interface {
	Standings() []pods.Standing
}

// Dispatcher knows the sources, and the pods without a worker; see pods.Dispatcher.
type Dispatcher interface {
	Held(ctx context.Context) ([]pods.Standing, error)
	Unsynced() []podsyncv1.PodSource
}

// Statuses know what was reported of a pod last; see status.Statuses.
type Statuses interface {
	Last(uid types.UID) (v1.PodStatus, bool)
}

// Probes know what the prober said of a pod's containers.
type Probes interface {
	Of(uid types.UID) decide.Results
}

// Allocation knows which resources pods have; see allocation.Allocation.
type Allocation interface {
	Explain(uid types.UID) (allocation.Explanation, bool)
}

// Pulls know which pulls have to wait; see images.Puller.
type Pulls interface {
	BackOff(uid types.UID, image string) (until time.Time, lastError string, ok bool)
}

// Judge admits without keeping anything; see admission.Admitter.
type Judge interface {
	Judge(ctx context.Context, p *v1.Pod) admission.Result
}

// Deps are where the answers come from.
type Deps struct {
	NodeName string
	// Gated are the pod fields that are supported because their feature gate is on.
	Gated []string
	// Sources are the configured ones.
	Sources    []podsyncv1.PodSource
	Workers    Workers
	Dispatcher Dispatcher
	Statuses   Statuses
	Probes     Probes
	Pulls      Pulls
	Allocation Allocation
	Judge      Judge
}

// Server is ExplainService.
type Server struct {
	podsyncv1.UnimplementedExplainServiceServer
	d Deps
}

// New returns the service.
func New(d Deps) *Server { return &Server{d: d} }

// standings are those of all pods, by namespace and name.
func (s *Server) standings(ctx context.Context) ([]pods.Standing, error) {
	held, err := s.d.Dispatcher.Held(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "podsync's dispatcher hangs: %v", err)
	}
	all := append(s.d.Workers.Standings(), held...)
	slices.SortFunc(all, func(a, b pods.Standing) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return all, nil
}

// ListPods implements podsyncv1.ExplainServiceServer.
func (s *Server) ListPods(ctx context.Context, _ *podsyncv1.ListPodsRequest) (*podsyncv1.ListPodsResponse, error) {
	all, err := s.standings(ctx)
	if err != nil {
		return nil, err
	}
	answer := &podsyncv1.ListPodsResponse{}
	for i := range all {
		answer.Pods = append(answer.Pods, s.summary(&all[i]))
	}
	unsynced := s.d.Dispatcher.Unsynced()
	for _, kind := range s.d.Sources {
		answer.Sources = append(answer.Sources,
			&podsyncv1.SourceState{Source: kind, Synced: !slices.Contains(unsynced, kind)})
	}
	return answer, nil
}

// ExplainPod implements podsyncv1.ExplainServiceServer.
func (s *Server) ExplainPod(ctx context.Context,
	r *podsyncv1.ExplainPodRequest) (*podsyncv1.ExplainPodResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is empty: give the pod's name or UID")
	}
	all, err := s.standings(ctx)
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(r.GetNamespace(), v1.NamespaceDefault)
	for _, name := range []string{r.GetName(), r.GetName() + "-" + strings.ToLower(s.d.NodeName)} {
		for i := range all {
			p := all[i].Pod
			if string(p.UID) != r.GetName() && (p.Namespace != namespace || p.Name != name) {
				continue
			}
			found, err := s.explain(&all[i])
			if err != nil {
				return nil, err
			}
			return &podsyncv1.ExplainPodResponse{Pod: found}, nil
		}
	}
	return nil, s.notFound(namespace, r.GetName(), all)
}

// notFound says what may be the reason that podsync does not know a pod.
func (s *Server) notFound(namespace, name string, all []pods.Standing) error {
	var elsewhere, unsynced []string
	for i := range all {
		if p := all[i].Pod; p.Name == name || p.Name == name+"-"+strings.ToLower(s.d.NodeName) {
			elsewhere = append(elsewhere, p.Namespace)
		}
	}
	for _, kind := range s.d.Dispatcher.Unsynced() {
		unsynced = append(unsynced, sources.Name(kind))
	}
	switch {
	case len(elsewhere) > 0:
		return status.Errorf(codes.NotFound, "pod %s is not in namespace %s but in %s: give --namespace", name, namespace,
			strings.Join(elsewhere, ", "))
	case len(unsynced) > 0:
		return status.Errorf(codes.NotFound, "pod %s/%s is not known yet: podsync has not heard all of its sources, these "+
			"are missing: %s; see its log", namespace, name, strings.Join(unsynced, ", "))
	}
	return status.Errorf(codes.NotFound, "no source has pod %s/%s for this node, %s: see with \"kubectl describe pod\" "+
		"whether it is scheduled, and in podsync's log whether its manifest is refused; \"microlet pods\" lists the pods "+
		"of the node", namespace, name, s.d.NodeName)
}
