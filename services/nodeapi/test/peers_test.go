package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/fake"
)

// reviews is nodestatus and the apiserver behind it. Names say what their owners may: "jane get_pods,get_log".
// A token is good if it begins with "good", and its owner is who follows. It has no answer for names with
// "hang" in them until it is told to go on.
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
func (r *reviews) ReviewToken(ctx context.Context, in *nodestatusv1.ReviewTokenRequest) (*nodestatusv1.ReviewTokenResponse, error) {
	var review authenticationv1.TokenReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	if err := r.hang(ctx, review.Spec.Token); err != nil {
		return nil, err
	}
	name, good := strings.CutPrefix(review.Spec.Token, "good-")
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: good, User: authenticationv1.UserInfo{Username: strings.ReplaceAll(name, "-", " ")}}
	data, err := review.Marshal()
	return &nodestatusv1.ReviewTokenResponse{Review: data}, err
}

// ReviewAccess implements the service.
func (r *reviews) ReviewAccess(ctx context.Context, in *nodestatusv1.ReviewAccessRequest) (*nodestatusv1.ReviewAccessResponse, error) {
	var review authorizationv1.SubjectAccessReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	if err := r.hang(ctx, review.Spec.User); err != nil {
		return nil, err
	}
	a := review.Spec.ResourceAttributes
	_, may, _ := strings.Cut(review.Spec.User, " ")
	review.Status.Allowed = a.Resource == "nodes" && a.Name == bustest.NodeName && slices.Contains(strings.Split(may, ","), a.Verb+"_"+a.Subresource)
	data, err := review.Marshal()
	return &nodestatusv1.ReviewAccessResponse{Review: data}, err
}

func (e *edge) startReviews() (stop func()) {
	e.t.Helper()
	return e.Serve(e.config.Service.Socket(role.NodeStatus), func(s *grpc.Server) { nodestatusv1.RegisterReviewServiceServer(s, e.reviews) })
}

// gateway is the runtime, which also streams: a command repeats what it is told, and so does every port.
type gateway struct {
	*fake.Runtime
	streams streaming.Server
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: l.Addr().String()}
	streams, err := streaming.NewServer(config, repeats{})
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: streams}}
	s.Start()
	t.Cleanup(s.Close)
	return &gateway{Runtime: fake.NewRuntime(nil), streams: streams}
}

// Exec implements CRI.
func (g *gateway) Exec(_ context.Context, in *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return g.streams.GetExec(in)
}

// Attach implements CRI.
func (g *gateway) Attach(_ context.Context, in *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return g.streams.GetAttach(in)
}

// PortForward implements CRI.
func (g *gateway) PortForward(_ context.Context, in *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return g.streams.GetPortForward(in)
}

func (e *edge) startGateway() (stop func()) {
	e.t.Helper()
	return e.Serve(e.config.Service.CRISocket(role.NodeAPI), func(s *grpc.Server) { runtimeapi.RegisterRuntimeServiceServer(s, e.runtime) })
}

// repeats is what runs in containers.
type repeats struct{}

// Exec implements streaming.Runtime.
func (repeats) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// Attach implements streaming.Runtime.
func (repeats) Attach(_ context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward implements streaming.Runtime.
func (repeats) PortForward(_ context.Context, _ string, _ int32, stream io.ReadWriteCloser) error {
	_, err := io.Copy(stream, stream)
	return err
}
