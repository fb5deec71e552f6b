package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

const (
	// maxDecisions is how many answers are kept. The kubelet keeps as many.
	maxDecisions = 8192
	// maxCachedBytes: what a caller chose to be longer than this is not kept, nor could it fill the memory.
	maxCachedBytes = 10000
)

// access is an authorizer that asks nodestatus for SubjectAccessReviews.
type access struct {
	client            nodestatusv1.ReviewServiceClient
	allowTTL, denyTTL time.Duration
	decisions         *cache.LRUExpireCache
	flight            singleflight.Group
}

var _ authorizer.UnconditionalAuthorizer = (*access)(nil)

func newAccess(client nodestatusv1.ReviewServiceClient, allowTTL, denyTTL time.Duration) *access {
	return &access{
		client:    client,
		allowTTL:  allowTTL,
		denyTTL:   denyTTL,
		decisions: cache.NewLRUExpireCache(maxDecisions),
	}
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (a *access) Authorize(ctx context.Context, attr authorizer.Attributes) (authorizer.Decision, string, error) {
	key, err := reviewOf(attr).Marshal()
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("encode access review: %w", err)
	}
	status, known := a.decisions.Get(string(key))
	if !known {
		// Callers with the same question share one review. It has its own deadline, because it belongs to no single caller.
		shared := a.flight.DoChan(string(key), func() (any, error) { return a.review(context.WithoutCancel(ctx), key) })
		select {
		case r := <-shared:
			if r.Err != nil {
				return authorizer.DecisionNoOpinion, "", r.Err
			}
			status = r.Val
		case <-ctx.Done():
			return authorizer.DecisionNoOpinion, "", ctx.Err()
		}
	}
	return decide(status.(authorizationv1.SubjectAccessReviewStatus))
}

func decide(s authorizationv1.SubjectAccessReviewStatus) (authorizer.Decision, string, error) {
	switch {
	case s.Denied && s.Allowed:
		return authorizer.DecisionDeny, s.Reason, errors.New("the apiserver said both allowed and denied")
	case s.Denied:
		return authorizer.DecisionDeny, s.Reason, nil
	case s.Allowed:
		return authorizer.DecisionAllow, s.Reason, nil
	}
	return authorizer.DecisionNoOpinion, s.Reason, nil
}

// review asks, and keeps the answer.
func (a *access) review(ctx context.Context, key []byte) (authorizationv1.SubjectAccessReviewStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	answer, err := a.client.ReviewAccess(ctx, &nodestatusv1.ReviewAccessRequest{Review: key}, grpc.WaitForReady(true))
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("access review by nodestatus: %w", err)
	}
	review := &authorizationv1.SubjectAccessReview{}
	if err := review.Unmarshal(answer.GetReview()); err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("decode access review: %w", err)
	}
	if len(key) <= maxCachedBytes {
		ttl := a.denyTTL
		if review.Status.Allowed {
			ttl = a.allowTTL
		}
		a.decisions.Add(string(key), review.Status, ttl)
	}
	return review.Status, nil
}

// reviewOf is the question whether the attributes are allowed. Its encoding is the key of the answer.
func reviewOf(attr authorizer.Attributes) *authorizationv1.SubjectAccessReview {
	who := attr.GetUser()
	r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: attr.GetVerb(), Version: attr.GetAPIVersion(), Resource: attr.GetResource(),
			Subresource: attr.GetSubresource(), Name: attr.GetName(),
		},
	}}
	for key, values := range who.GetExtra() {
		if r.Spec.Extra == nil {
			r.Spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		r.Spec.Extra[key] = values
	}
	return r
}
