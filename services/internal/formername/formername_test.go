package formername

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// build is a podsync of one version. It has EvictionService, or the method of PodsyncService alone.
type build struct {
	podsyncv1.UnimplementedEvictionServiceServer
	denied *prometheus.Registry
	stop   func()

	mu     sync.Mutex
	called []string
}

func (b *build) Evict(ctx context.Context, r *podsyncv1.EvictRequest) (*podsyncv1.EvictResponse, error) {
	method, _ := grpc.Method(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.called = append(b.called, method)
	if r.GetPodUid() == "" {
		return nil, status.Error(codes.NotFound, "nothing of the pod is on the node")
	}
	return &podsyncv1.EvictResponse{Stopping: true}, nil
}

// older is PodsyncService.
type older struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	*build
}

func (o older) Evict(ctx context.Context, r *podsyncv1.EvictRequest) (*podsyncv1.EvictResponse, error) {
	return o.build.Evict(ctx, r)
}

// serve serves one build at path, with the policy that it has.
func serve(t *testing.T, path string, current bool) *build {
	t.Helper()
	const evict = podsyncv1.EvictionService_Evict_FullMethodName
	l, err := unixgrpc.Listen(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	b := &build{denied: prometheus.NewRegistry()}
	policy := unixgrpc.NewPolicy(map[string][]role.Role{
		grpc_health_v1.Health_Check_FullMethodName: role.All(), Of(evict): role.All(),
	})
	server := unixgrpc.NewServer(unixgrpc.ServerOptions{
		Policy: policy, Log: slog.New(slog.DiscardHandler), Metrics: b.denied,
	})
	health := grpchealth.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health)
	podsyncv1.RegisterPodsyncServiceServer(server, older{build: b})
	if current {
		podsyncv1.RegisterEvictionServiceServer(server, b)
		policy.Allow(evict, role.All()...)
		health.SetServingStatus(podsyncv1.EvictionService_ServiceDesc.ServiceName,
			grpc_health_v1.HealthCheckResponse_NOT_SERVING) // it has the service, although it may not be ready
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	b.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// check checks what a build was asked, and that it has denied nothing.
func (b *build) check(t *testing.T, want ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.called, want) {
		t.Errorf("called %q, want %q", b.called, want)
	}
	if n, err := testutil.GatherAndCount(b.denied, "microlet_grpc_denied_total"); n != 0 || err != nil {
		t.Errorf("%d kinds of calls were denied, %v", n, err)
	}
}

// A client of this build works with either podsync, also when one takes the place of the other.
func TestABuildTakesThePlaceOfAnother(t *testing.T) {
	path := filepath.Join(proctest.TempDir(t, 0o700), "grpc.sock")
	socket, err := unixgrpc.Dial(path, unixgrpc.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	client := podsyncv1.NewEvictionServiceClient(Conn(socket))
	const evict = podsyncv1.EvictionService_Evict_FullMethodName
	if _, err := client.Evict(t.Context(), &podsyncv1.EvictRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without podsync: %v", err)
	}
	for _, current := range []bool{true, false, true} {
		podsync, want := serve(t, path, current), evict
		if !current {
			want = "/microlet.podsync.v1.PodsyncService/Evict"
		}
		answer, err := client.Evict(t.Context(), &podsyncv1.EvictRequest{PodUid: "u"}, grpc.WaitForReady(true))
		if err != nil || !answer.GetStopping() {
			t.Errorf("current is %t: %v, %v", current, answer, err)
		}
		// The answer of the method itself is no sign of another build.
		if _, err := client.Evict(t.Context(), &podsyncv1.EvictRequest{}); status.Code(err) != codes.NotFound {
			t.Errorf("current is %t: %v", current, err)
		}
		podsync.check(t, want, want)
		podsync.stop()
		socket.WaitForStateChange(t.Context(), connectivity.Ready) // the client has seen that
	}
}

func TestTheDeadlineHoldsForTheQuestionToo(t *testing.T) {
	path := filepath.Join(proctest.TempDir(t, 0o700), "grpc.sock")
	socket, err := unixgrpc.Dial(path, unixgrpc.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client := podsyncv1.NewEvictionServiceClient(Conn(socket))
	_, err = client.Evict(ctx, &podsyncv1.EvictRequest{}, grpc.WaitForReady(true))
	if status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}
