// Package authreview answers nodeapi's questions: who owns a token, and what a user may do.
//
// It asks the API server with TokenReview and SubjectAccessReview. The number of concurrent reviews of each kind is
// limited, and each has a deadline, within which one that fails for a moment is asked again. So a flood of unknown
// tokens neither floods the API server nor delays the Lease or the authorization of known callers. The caller caches
// the answers.
package authreview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	// concurrency is how many reviews of tokens may be under way, and as many of access; more wait for
	// their turn.
	concurrency = 16
	// deadline bounds one review, its waits for a turn and its repetitions included. nodeapi's callers wait for it.
	deadline = 10 * time.Second
)

// Reviewer is the apiserver's part.
type Reviewer interface {
	ReviewToken(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
	ReviewAccess(ctx context.Context,
		r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error)
}

// Server is the ReviewService.
type Server struct {
	nodestatusv1.UnimplementedReviewServiceServer
	reviewer       Reviewer
	tokens, access kind
	reviews        *prometheus.CounterVec
}

// kind is one kind of review.
type kind struct {
	label  string // of the metric
	object string // that a request holds
	places chan struct{}
}

// Register has nodestatus review for nodeapi.
func Register(s *service.Service, r Reviewer) {
	nodestatusv1.RegisterReviewServiceServer(s.GRPC, NewServer(r, s.Metrics))
	s.Offer(&nodestatusv1.ReviewService_ServiceDesc, role.NodeAPI)
}

// NewServer returns the service; metrics nil registers none.
func NewServer(r Reviewer, metrics prometheus.Registerer) *Server {
	s := &Server{
		reviewer: r,
		tokens:   kind{label: "token", object: "TokenReview", places: make(chan struct{}, concurrency)},
		access:   kind{label: "access", object: "SubjectAccessReview", places: make(chan struct{}, concurrency)},
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodestatus_reviews_total",
			Help: "Reviews that nodeapi asked for, by kind and gRPC code of the answer.",
		}, []string{"kind", "code"}),
	}
	if metrics != nil {
		metrics.MustRegister(s.reviews)
	}
	return s
}

// ReviewToken implements ReviewService.
func (s *Server) ReviewToken(ctx context.Context,
	req *nodestatusv1.ReviewTokenRequest) (*nodestatusv1.ReviewTokenResponse, error) {
	asked := &authenticationv1.TokenReview{}
	answer, err := s.bounded(ctx, s.tokens, req.GetReview(), asked, func(ctx context.Context) (object, error) {
		return s.reviewer.ReviewToken(ctx, &authenticationv1.TokenReview{Spec: asked.Spec})
	})
	return &nodestatusv1.ReviewTokenResponse{Review: answer}, err
}

// ReviewAccess implements ReviewService.
func (s *Server) ReviewAccess(ctx context.Context,
	req *nodestatusv1.ReviewAccessRequest) (*nodestatusv1.ReviewAccessResponse, error) {
	asked := &authorizationv1.SubjectAccessReview{}
	answer, err := s.bounded(ctx, s.access, req.GetReview(), asked, func(ctx context.Context) (object, error) {
		return s.reviewer.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{Spec: asked.Spec})
	})
	return &nodestatusv1.ReviewAccessResponse{Review: answer}, err
}

// object is one of Kubernetes.
type object interface {
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// bounded decodes what is asked, runs the review when there is a place for it, and encodes what came of it. Who asks
// says what is to be reviewed, which is the Spec, and nothing else.
func (s *Server) bounded(ctx context.Context, k kind, request []byte, asked object,
	review func(context.Context) (object, error)) (answer []byte, err error) {
	if err := asked.Unmarshal(request); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request holds no %s: %v", k.object, err)
	}
	defer func() { s.reviews.WithLabelValues(k.label, status.Code(err).String()).Inc() }()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	pauses := retries
	for {
		reviewed, err := k.inPlace(ctx, review)
		if err == nil {
			answer, err = reviewed.Marshal()
			return answer, asStatus(err)
		}
		if pauses.Steps == 0 || !isTransient(err) || pause.For(ctx, pauses.Step()) != nil {
			return nil, asStatus(err)
		}
	}
}

// retries are the kubelet's: an API server that restarts, or is busy for a moment, refuses no caller. Source:
// k8s.io/apiserver, DefaultAuthWebhookRetryBackoff.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}

// isTransient reports whether the API server may answer when it is asked again.
// Source: k8s.io/apiserver, util/webhook, DefaultShouldRetry.
func isTransient(err error) bool {
	if _, later := apierrors.SuggestsClientDelay(err); later {
		return true
	}
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

// inPlace runs a review when there is a place for it.
func (k kind) inPlace(ctx context.Context, review func(context.Context) (object, error)) (object, error) {
	select {
	case k.places <- struct{}{}:
		defer func() { <-k.places }()
	case <-ctx.Done():
		return nil, fmt.Errorf("no review has come to its end: %w", ctx.Err())
	}
	return review(ctx)
}

// asStatus keeps apart whether asking again may help. A refusal of the apiserver's is not
// PermissionDenied, which on these sockets is said of the peer's role.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		_, later := apierrors.SuggestsClientDelay(err)
		if !later && !apierrors.IsInternalError(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) &&
			!apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err) {
			return status.Errorf(codes.FailedPrecondition, "the apiserver refused the review: %v", err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	return status.Errorf(codes.Unavailable, "the apiserver did not review: %v", err)
}
