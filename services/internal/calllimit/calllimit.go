// Package calllimit limits the calls of a gRPC API that the kubelet has too, as the kubelet does: 100 a second of all
// callers together, with bursts of 10. Further calls get ResourceExhausted, "rejected by rate limit".
//
// https://github.com/kubernetes/kubernetes/blob/v1.37.1/pkg/kubelet/apis/grpc/ratelimit.go
package calllimit

import (
	"context"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// PerSecond is how many calls an API answers in a second.
	PerSecond = 100
	// Burst is how many of them may come at the same time.
	Burst = 10
)

var errLimit = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// NewLimiter returns the limiter of an API.
func NewLimiter() *rate.Limiter { return rate.NewLimiter(PerSecond, Burst) }

// Unary returns an interceptor that refuses calls beyond the limit. Streams are not limited.
func Unary(l *rate.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !l.Allow() {
			return nil, errLimit
		}
		return handle(ctx, request)
	}
}
