package gateway

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The same assertions hold of the runtime itself and of the gateway before it.
func TestConformance(t *testing.T) {
	for _, way := range []struct {
		name string
		conn func(*bench) grpc.ClientConnInterface
	}{
		{"direct", func(b *bench) grpc.ClientConnInterface { return b.direct }},
		{"gateway", func(b *bench) grpc.ClientConnInterface { return through{b} }},
	} {
		t.Run(way.name, func(t *testing.T) {
			for _, test := range []struct {
				name string
				run  func(*testing.T, *bench, runtimeapi.RuntimeServiceClient, runtimeapi.ImageServiceClient)
			}{
				{"lists", conformLists},
				{"errors", conformErrors},
				{"streams", conformStreams},
				{"events", conformEvents},
				{"exec", conformExec},
				{"images", conformImages},
				{"deadlines", conformDeadlines},
				{"restart", conformRestart},
			} {
				t.Run(test.name, func(t *testing.T) {
					b := newBench(t, anyone)
					conn := way.conn(b)
					test.run(t, b, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn))
				})
			}
		})
	}
}

func conformLists(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, _ runtimeapi.ImageServiceClient) {
	for value, want := range map[string]int{"web": 1, "other": 0} {
		filter := map[string]string{"app": value}
		sandboxes, err := rt.ListPodSandbox(t.Context(),
			&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: filter}})
		if err != nil || len(sandboxes.Items) != want {
			t.Errorf("sandboxes of %s: %v, %v", value, sandboxes, err)
		}
		containers, err := rt.ListContainers(t.Context(),
			&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: filter}})
		if err != nil || len(containers.Containers) != want {
			t.Errorf("containers of %s: %v, %v", value, containers, err)
		}
	}
	st, err := rt.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: b.container})
	if err != nil || st.Status.Labels["app"] != "web" ||
		st.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("status: %v, %v", st, err)
	}
	if v, err := rt.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil || v.RuntimeName != "fake" {
		t.Errorf("version: %v, %v", v, err)
	}
}

func conformErrors(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, images runtimeapi.ImageServiceClient) {
	_, err := rt.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "nope"})
	if s := status.Convert(err); s.Code() != codes.NotFound ||
		s.Message() != `an error occurred when try to find container "nope": not found` {
		t.Errorf("got %v", err)
	}
	want, err := status.New(codes.ResourceExhausted, "full").WithDetails(&runtimeapi.VersionRequest{Version: "detail"})
	if err != nil {
		t.Fatal(err)
	}
	b.fake.Fail("ListContainers", want.Err())
	_, err = rt.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "full" || len(s.Details()) != 1 {
		t.Errorf("got %v with %v", err, s.Details())
	}
	b.fake.Fail("StreamImages", want.Err())
	stream, err := images.StreamImages(t.Context(), &runtimeapi.StreamImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("stream: got %v", err)
	}
}

func conformStreams(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, images runtimeapi.ImageServiceClient) {
	containers, err := rt.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := containers.Recv(); err != nil || len(resp.Containers) != 1 || resp.Containers[0].Id != b.container {
		t.Errorf("got %v, %v", resp, err)
	}
	if _, err := containers.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	all, err := images.StreamImages(t.Context(), &runtimeapi.StreamImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := all.Recv(); err != nil || resp.Images[0].RepoTags[0] != testImage {
		t.Errorf("got %v, %v", resp, err)
	}
}

func conformEvents(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, _ runtimeapi.ImageServiceClient) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events, err := rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the stream is open", func() bool { return b.fake.EventStreams() == 1 })
	if err := b.fake.ExitContainer(b.container, 9); err != nil {
		t.Fatal(err)
	}
	ev, err := events.Recv()
	if err != nil || ev.ContainerId != b.container ||
		ev.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
		t.Fatalf("got %v, %v", ev, err)
	}
	// The runtime's stream ends when the caller's does.
	cancel()
	waitUntil(t, "the stream is closed", func() bool { return b.fake.EventStreams() == 0 })
}

func conformExec(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, _ runtimeapi.ImageServiceClient) {
	resp, err := rt.ExecSync(t.Context(),
		&runtimeapi.ExecSyncRequest{ContainerId: b.container, Cmd: []string{"hello"}, Timeout: 5})
	if err != nil || string(resp.Stdout) != "hello" || string(resp.Stderr) != "careful" || resp.ExitCode != 3 {
		t.Fatalf("got %v, %v", resp, err)
	}
}

func conformImages(t *testing.T, _ *bench, _ runtimeapi.RuntimeServiceClient, images runtimeapi.ImageServiceClient) {
	spec := &runtimeapi.ImageSpec{Image: testImage}
	if info, err := images.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}); err != nil ||
		len(info.ImageFilesystems) != 1 {
		t.Fatalf("got %v, %v", info, err)
	}
	if _, err := images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
		t.Fatal(err)
	}
	if st, err := images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec}); err != nil ||
		st.Image != nil {
		t.Fatalf("got %v, %v", st, err)
	}
}

func conformDeadlines(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, _ runtimeapi.ImageServiceClient) {
	defer b.fake.Hang("ListContainers")()
	defer b.fake.Hang("ContainerStatus")()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("list: got %v", err)
	}
	if _, err := rt.ContainerStatus(ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: b.container}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("status: got %v", err)
	}
	waitUntil(t, "the runtime's calls end too", func() bool {
		return b.fake.InFlight("ListContainers")+b.fake.InFlight("ContainerStatus") == 0
	})
}

func conformRestart(t *testing.T, b *bench, rt runtimeapi.RuntimeServiceClient, _ runtimeapi.ImageServiceClient) {
	if _, err := rt.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if _, err := rt.ListContainers(t.Context(),
		&runtimeapi.ListContainersRequest{}); status.Code(err) != codes.Unavailable {
		t.Fatalf("got %v, want Unavailable", err)
	}
}

// waitUntil polls what cannot notify: the kernel carries it in real time.
func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("timed out until %s", what)
		}
	}
}
