// Package authreview answers nodeapi's questions: who owns a token, and what a user may do.
//
// It asks the API server with TokenReview and SubjectAccessReview. The number of concurrent reviews of each kind is
// limited, and each has a deadline. So a flood of unknown tokens neither floods the API server nor delays the Lease
// or the authorization of known callers. The caller caches the answers.
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

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

const (
	// concurrency is how many reviews of tokens may be under way, and as many of access; more wait for
	// their turn.
	concurrency = 16
	// deadline bounds one review, its wait for a turn included. nodeapi's callers wait for it.
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
	tokens, access chan struct{} // the places of each kind
	reviews        *prometheus.CounterVec
}

// NewServer returns the service; metrics nil registers none.
func NewServer(r Reviewer, metrics prometheus.Registerer) *Server {
	s := &Server{
		reviewer: r, tokens: make(chan struct{}, concurrency), access: make(chan struct{}, concurrency),
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
	review := &authenticationv1.TokenReview{}
	if err := review.Unmarshal(req.GetReview()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request holds no TokenReview: %v", err)
	}
	// Who asks says what is to be reviewed, nothing else.
	review = &authenticationv1.TokenReview{Spec: review.Spec}
	answer, err := s.bounded(ctx, "token", s.tokens,
		func(ctx context.Context) (marshaler, error) { return s.reviewer.ReviewToken(ctx, review) })
	if err != nil {
		return nil, err
	}
	return &nodestatusv1.ReviewTokenResponse{Review: answer}, nil
}

// ReviewAccess implements ReviewService.
func (s *Server) ReviewAccess(ctx context.Context,
	req *nodestatusv1.ReviewAccessRequest) (*nodestatusv1.ReviewAccessResponse, error) {
	review := &authorizationv1.SubjectAccessReview{}
	if err := review.Unmarshal(req.GetReview()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request holds no SubjectAccessReview: %v", err)
	}
	review = &authorizationv1.SubjectAccessReview{Spec: review.Spec}
	answer, err := s.bounded(ctx, "access", s.access,
		func(ctx context.Context) (marshaler, error) { return s.reviewer.ReviewAccess(ctx, review) })
	if err != nil {
		return nil, err
	}
	return &nodestatusv1.ReviewAccessResponse{Review: answer}, nil
}

// marshaler is a Kubernetes object.
type marshaler interface{ Marshal() ([]byte, error) }

// bounded runs one review when there is a place for it, and encodes what came of it.
func (s *Server) bounded(ctx context.Context, kind string, places chan struct{},
	review func(context.Context) (marshaler, error)) (answer []byte, err error) {
	defer func() { s.reviews.WithLabelValues(kind, status.Code(err).String()).Inc() }()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return nil, status.FromContextError(fmt.Errorf("no review has come to its end: %w", ctx.Err())).Err()
	}
	reviewed, err := review(ctx)
	if err != nil {
		return nil, asStatus(err)
	}
	answer, err = reviewed.Marshal()
	return answer, asStatus(err)
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
