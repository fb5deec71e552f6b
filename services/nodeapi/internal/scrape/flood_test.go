package scrape

import (
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// TestManyWhoAskForHealth share one question to the service. It takes few connections of nodeapi: with a connection for
// each request, a flood of a port would make it look unhealthy to programs that restart a node for that.
func TestManyWhoAskForHealth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "podsync.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var asking, all sync.WaitGroup
	var under atomic.Int32
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if under.Add(1) > 1 {
			t.Error("the service is asked twice at one time")
		}
		asking.Wait()
		under.Add(-1)
		_, _ = w.Write([]byte("ok\n"))
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	s := New(func(role.Role) string { return path }, unixgrpc.Rules{}, slog.New(slog.DiscardHandler))
	for range 50 {
		asking.Add(1)
		all.Go(func() {
			asking.Done()
			if err := s.Healthy(t.Context(), role.Podsync); err != nil {
				t.Errorf("the service looks ill: %v", err)
			}
		})
	}
	all.Wait()
}
