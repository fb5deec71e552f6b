package criproxy

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime counts what it is asked to stop.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	stopped atomic.Int32
}

func (r *runtime) Version(_ context.Context, q *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake " + q.GetVersion()}, nil
}

func (r *runtime) StopContainer(context.Context, *runtimeapi.StopContainerRequest) (
	*runtimeapi.StopContainerResponse, error) {
	r.stopped.Add(1)
	return &runtimeapi.StopContainerResponse{}, nil
}

func (r *runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	events grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	for range 3 {
		if err := events.Send(&runtimeapi.ContainerEventResponse{ContainerId: "c"}); err != nil {
			return err
		}
	}
	return nil
}

// start returns a runtime, a proxy before it, and a client.
func start(t *testing.T) (*runtime, *Proxy, runtimeapi.RuntimeServiceClient) {
	t.Helper()
	dir := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "runtime"))
	if err != nil {
		t.Fatal(err)
	}
	r, server := &runtime{}, grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	p, err := Start(filepath.Join(dir, "proxy"), filepath.Join(dir, "runtime"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "proxy"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return r, p, runtimeapi.NewRuntimeServiceClient(conn)
}

func TestCallsPass(t *testing.T) {
	_, _, c := start(t)
	got, err := c.Version(t.Context(), &runtimeapi.VersionRequest{Version: "1"})
	if err != nil || got.GetRuntimeName() != "fake 1" {
		t.Errorf("version %v, %v", got, err)
	}
	if _, err := c.Status(t.Context(), &runtimeapi.StatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that the runtime does not have: %v", err)
	}
	events, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if e, err := events.Recv(); err != nil || e.GetContainerId() != "c" {
			t.Errorf("event %d: %v, %v", i, e, err)
		}
	}
	if e, err := events.Recv(); err == nil {
		t.Errorf("a fourth event: %v", e)
	}
}

func TestHold(t *testing.T) {
	for after, want := range map[bool]int32{false: 1, true: 2} {
		r, p, c := start(t)
		held := p.Hold(2, after, func(method string) bool { return method == "StopContainer" })
		ctx, die := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
					t.Error("a call that is not wanted: ", err)
				}
				if _, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{}); err != nil {
					ended <- err
					return
				}
			}
		}()
		if method := <-held; method != "StopContainer" {
			t.Errorf("after %t: %s is held", after, method)
		}
		die()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("after %t: the held call has ended with %v", after, err)
		}
		if got := r.stopped.Load(); got != want {
			t.Errorf("after %t: the runtime has stopped %d, want %d", after, got, want)
		}
		if _, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{}); err != nil {
			t.Errorf("after %t: the next call: %v", after, err)
		}
	}
}

func TestRelease(t *testing.T) {
	_, p, c := start(t)
	held := p.Hold(1, false, func(string) bool { return true })
	p.Release()
	if _, err := c.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Error(err)
	}
	select {
	case method := <-held:
		t.Errorf("%s was held", method)
	default:
	}
}
