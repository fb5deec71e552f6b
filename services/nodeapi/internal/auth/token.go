// Package auth says who calls the node's HTTPS API, and whether he may.
//
// Its inputs are a client certificate and the CA's file, or a bearer token, which nodestatus has the
// apiserver review; and what the caller asks for. Its outputs are a user, and a decision.
//
// It guarantees: nobody passes because something could not be asked. Answers are cached as the
// kubelet's, so that a caller who passed a moment ago still does while nodestatus restarts. This
// process holds no credential with which it could ask itself.
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
	who := &user.DefaultInfo{Name: review.Status.User.Username, UID: review.Status.User.UID, Groups: review.Status.User.Groups}
	for key, values := range review.Status.User.Extra {
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[key] = values
	}
	return &authenticator.Response{User: who}, true, nil
}
