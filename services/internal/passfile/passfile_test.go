package passfile

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// TestWhoWaitsMayLeave has a caller end its request before it has a place.
func TestWhoWaitsMayLeave(t *testing.T) {
	client := NewClient("log", filepath.Join(t.TempDir(), "logs.sock"), unixgrpc.Rules{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range together {
		client.places <- struct{}{}
	}
	if _, err := client.Open(ctx, "abc"); status.Code(err) != codes.Canceled {
		t.Errorf("who leaves: %v", err)
	}
}
