// Package auth authenticates and authorizes the callers of the HTTPS API.
//
// It checks client certificates against the client CA. For bearer tokens and for authorization, it has nodestatus
// ask the API server, because nodeapi has no API credential. If no review is possible, the request is refused. Answers
// are cached as in the kubelet, so a caller that was accepted recently stays accepted while nodestatus restarts.
package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

// reviewTimeout bounds a review, and so how long a caller waits while nodestatus is away.
const reviewTimeout = 10 * time.Second

// tokens is an authenticator of bearer tokens.
type tokens struct {
	client nodestatusv1.ReviewServiceClient
}

var _ authenticator.Token = tokens{}

// AuthenticateToken implements authenticator.Token.
func (t tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	// No audience is named: the apiserver then takes its own, as for the kubelet.
	ask := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	data, err := ask.Marshal()
	if err != nil {
		return nil, false, fmt.Errorf("encode token review: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	answer, err := t.client.ReviewToken(ctx, &nodestatusv1.ReviewTokenRequest{Review: data}, grpc.WaitForReady(true))
	if err != nil {
		return nil, false, fmt.Errorf("token review by nodestatus: %w", err)
	}
	review := &authenticationv1.TokenReview{}
	if err := review.Unmarshal(answer.GetReview()); err != nil {
		return nil, false, fmt.Errorf("decode token review: %w", err)
	}
	if !review.Status.Authenticated {
		if review.Status.Error != "" {
			return nil, false, errors.New(review.Status.Error)
		}
		return nil, false, nil
	}
	who := &user.DefaultInfo{
		Name:   review.Status.User.Username,
		UID:    review.Status.User.UID,
		Groups: review.Status.User.Groups,
	}
	for key, values := range review.Status.User.Extra {
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[key] = values
	}
	return &authenticator.Response{User: who}, true, nil
}
