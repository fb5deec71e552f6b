package explain

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// CheckPod implements podsyncv1.ExplainServiceServer.
func (s *Server) CheckPod(ctx context.Context, r *podsyncv1.CheckPodRequest) (*podsyncv1.CheckPodResponse, error) {
	if len(r.GetManifest()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the manifest is empty: give one of a Pod")
	}
	answer := Check(r.GetManifest(), Origin{NodeName: s.d.NodeName, Static: r.GetStatic(), Gated: s.d.Gated})
	if len(answer.GetErrors()) > 0 {
		return answer, nil
	}
	p, err := manifest.Parse(r.GetManifest(), origin(s.d.NodeName, r.GetStatic()))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "parse the manifest again: %v", err)
	}
	answer.Admission = &podsyncv1.Admission{State: podsyncv1.Admission_STATE_ADMITTED}
	if result := s.d.Judge.Judge(ctx, p); !result.Admitted() {
		answer.Admission = rejection(result)
	}
	return answer, nil
}

// Origin says how a manifest would come to a node.
type Origin struct {
	NodeName string
	// Static judges it as a static pod.
	Static bool
	// Gated are the pod fields that are supported because their feature gate is on.
	Gated []string
}

// Check says what any node would refuse of a pod, whatever else runs there. The admission is left out.
func Check(data []byte, from Origin) *podsyncv1.CheckPodResponse {
	answer := &podsyncv1.CheckPodResponse{}
	p, err := manifest.Parse(data, origin(from.NodeName, from.Static))
	if err != nil {
		answer.Errors = texts(err)
	}
	if p == nil {
		return answer
	}
	answer.Namespace, answer.Name = p.Namespace, p.Name
	var unsupported *fields.UnsupportedError
	if errors.As(fields.Check(p, from.Gated...), &unsupported) {
		answer.RefusedFields = unsupported.Fields
	}
	return answer
}

func origin(nodeName string, static bool) manifest.Origin {
	return manifest.Origin{NodeName: nodeName, URL: "microlet explain", Strict: true, API: !static}
}

// texts are the errors that err aggregates.
func texts(err error) []string {
	var all utilerrors.Aggregate
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	var lines []string
	for _, one := range all.Errors() {
		lines = append(lines, one.Error())
	}
	return lines
}
