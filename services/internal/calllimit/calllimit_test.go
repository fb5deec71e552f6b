package calllimit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestUnary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := Unary(NewLimiter())
		call := func() error {
			_, err := limit(t.Context(), nil, &grpc.UnaryServerInfo{},
				func(context.Context, any) (any, error) { return nil, nil })
			return err
		}
		for i := range Burst {
			if err := call(); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		err := call()
		if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "rejected by rate limit" {
			t.Errorf("call beyond the burst: %v", err)
		}
		time.Sleep(time.Second / PerSecond)
		if err := call(); err != nil {
			t.Errorf("a call later: %v", err)
		}
	})
}
