package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
)

// reviews is nodestatus and the apiserver behind it. Names say what their owners may: "jane get_pods,get_log".
// A token is good if it begins with "good", and its owner is who follows. It has no answer for names with
// "hang" in them until the test lets it go on.
type reviews struct {
	nodestatusv1.UnimplementedReviewServiceServer
	goOn chan struct{}
	mu   sync.Mutex
	open int // calls that hang
}

func newReviews() *reviews { return &reviews{goOn: make(chan struct{})} }

// hang waits if the name is one that hangs.
func (r *reviews) hang(ctx context.Context, name string) error {
	if !strings.Contains(name, "hang") {
		return nil
	}
	count := func(n int) { r.mu.Lock(); r.open += n; r.mu.Unlock() }
	count(1)
	defer count(-1)
	select {
	case <-r.goOn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reviews) hanging() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// ReviewToken implements the service.
func (r *reviews) ReviewToken(ctx context.Context,
	in *nodestatusv1.ReviewTokenRequest) (*nodestatusv1.ReviewTokenResponse, error) {
	var review authenticationv1.TokenReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	if err := r.hang(ctx, review.Spec.Token); err != nil {
		return nil, err
	}
	name, good := strings.CutPrefix(review.Spec.Token, "good-")
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: good,
		User:          authenticationv1.UserInfo{Username: strings.ReplaceAll(name, "-", " ")},
	}
	data, err := review.Marshal()
	return &nodestatusv1.ReviewTokenResponse{Review: data}, err
}

// ReviewAccess implements the service.
func (r *reviews) ReviewAccess(ctx context.Context,
	in *nodestatusv1.ReviewAccessRequest) (*nodestatusv1.ReviewAccessResponse, error) {
	var review authorizationv1.SubjectAccessReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	if err := r.hang(ctx, review.Spec.User); err != nil {
		return nil, err
	}
	a := review.Spec.ResourceAttributes
	_, may, _ := strings.Cut(review.Spec.User, " ")
	if review.Spec.User == user.Anonymous {
		may = "get_healthz" // as an operator may allow
	}
	review.Status.Allowed = a.Resource == "nodes" && a.Name == bustest.NodeName &&
		slices.Contains(strings.Split(may, ","), a.Verb+"_"+a.Subresource)
	data, err := review.Marshal()
	return &nodestatusv1.ReviewAccessResponse{Review: data}, err
}

// figures is stats. It answers no caller while it hangs.
type figures struct {
	statsv1.UnimplementedStatsServiceServer
	hangs atomic.Bool
}

// Summary implements the service.
func (f *figures) Summary(ctx context.Context, in *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) {
	if f.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	text := fmt.Sprintf(`{"node":{"nodeName":"all: %v"}}`, !in.GetOnlyCpuAndMemory())
	return &statsv1.SummaryResponse{Json: []byte(text), Taken: timestamppb.Now()}, nil
}

// Page implements the service.
func (f *figures) Page(in *statsv1.PageRequest, to grpc.ServerStreamingServer[statsv1.PageResponse]) error {
	if f.hangs.Load() {
		<-to.Context().Done()
		return to.Context().Err()
	}
	return errors.Join(
		to.Send(&statsv1.PageResponse{Text: []byte("# TYPE scrape_error gauge\n"), Taken: timestamppb.Now()}),
		to.Send(&statsv1.PageResponse{Text: fmt.Appendf(nil, "scrape_error %d\n", in.GetPage())}),
	)
}

func (e *testNode) startStats(f *figures) (stop func()) {
	e.t.Helper()
	return e.Serve(e.config.Service.Socket(role.Stats),
		func(s *grpc.Server) { statsv1.RegisterStatsServiceServer(s, f) })
}

func (e *testNode) startReviews() (stop func()) {
	e.t.Helper()
	return e.Serve(e.config.Service.Socket(role.NodeStatus),
		func(s *grpc.Server) { nodestatusv1.RegisterReviewServiceServer(s, e.reviews) })
}

func (e *testNode) startGateway() (stop func()) {
	e.t.Helper()
	return e.Serve(e.config.Service.CRISocket(role.NodeAPI),
		func(s *grpc.Server) { runtimeapi.RegisterRuntimeServiceServer(s, e.runtime) })
}

// startPeers starts all that nodeapi asks for what it answers.
func (e *testNode) startPeers() {
	e.t.Helper()
	e.startReviews()
	e.startGateway()
	e.startPodsync()
}
