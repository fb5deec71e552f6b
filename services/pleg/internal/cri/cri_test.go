package cri

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

func TestListAndStreamFollowAContainersLife(t *testing.T) {
	rt := fake.NewRuntime(time.Now)
	path := t.TempDir() + "/cri.sock"
	stop, err := rt.Serve(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	conn := dial(t, path)
	r := New(conn, crilist.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	events := make(chan relist.StreamEvent, 10)
	opened := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- r.Stream(ctx, func() { close(opened) }, func(ev relist.StreamEvent) { events <- ev })
	}()
	<-opened
	for rt.EventStreams() == 0 { // the server's side may lag
		if ctx.Err() != nil {
			t.Fatal("no stream arrived")
		}
		if _, err := r.List(ctx); err != nil {
			t.Fatal(err)
		}
	}

	client := runtimeapi.NewRuntimeServiceClient(conn)
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "uid-1", Attempt: 2},
	}
	sb, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	rt.AddImage("img")
	c, err := client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sb.PodSandboxId, SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: 3},
			Image:    &runtimeapi.ImageSpec{Image: "img"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
	got, err := r.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := relist.Snapshot{"uid-1": {
		sb.PodSandboxId: {State: relist.Running, Sandbox: true, Attempt: 2},
		c.ContainerId:   {State: relist.Running, Name: "c", Attempt: 3},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("running (-want +got):\n%s", d)
	}
	if err := rt.ExitContainer(c.ContainerId, 1); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case ev := <-events:
			if ev.Kind != relist.StreamStopped {
				continue
			}
			if ev.ID != c.ContainerId || ev.PodUID != "uid-1" || time.Since(ev.Created) > time.Minute {
				t.Errorf("stopped event %+v is not of container %s of pod uid-1", ev, c.ContainerId)
			}
		case <-ctx.Done():
			t.Fatal("no event reported the exit")
		}
		break
	}
	if got, err = r.List(ctx); err != nil || got["uid-1"][c.ContainerId].State != relist.Exited {
		t.Errorf("after the exit: %v, %v", got, err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the stream ended without an error")
	}
}

func TestRuntimeWithoutStreamIsToldApart(t *testing.T) {
	if err := streamError(status.Error(codes.Unimplemented, "no")); !errors.Is(err, relist.ErrNoStream) {
		t.Errorf("%v is not ErrNoStream", err)
	}
	if err := streamError(status.Error(codes.Unavailable, "no")); errors.Is(err, relist.ErrNoStream) {
		t.Errorf("%v is ErrNoStream", err)
	}
}

func TestContainerWithoutListedSandboxIsFoundByItsLabel(t *testing.T) {
	got, err := snapshot(
		list(&runtimeapi.PodSandbox{Id: "foreign"}),
		list([]*runtimeapi.Container{
			{Id: "c1", PodSandboxId: "unlisted", Labels: map[string]string{kubelettypes.KubernetesPodUIDLabel: "u"},
				State: runtimeapi.ContainerState_CONTAINER_EXITED},
			{Id: "c2", PodSandboxId: "foreign"},
		}...))
	if err != nil {
		t.Fatal(err)
	}
	want := relist.Snapshot{"u": {"c1": {State: relist.Exited}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("snapshot (-want +got):\n%s", d)
	}
}

func list[T any](items ...T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, insecureCredentials())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func insecureCredentials() grpc.DialOption {
	return grpc.WithTransportCredentials(insecure.NewCredentials())
}

// Containers with long annotations make the list larger than a message, which the runtime refuses to send.
func TestListLargerThanAMessage(t *testing.T) {
	rt := fake.NewRuntime(time.Now)
	rt.SetStreamBatch(1) // as the gateway
	path := t.TempDir() + "/cri.sock"
	stop, err := rt.Serve(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	long := map[string]string{"long": strings.Repeat("x", 1350<<10)}
	for i := range 13 {
		if _, _, err := rt.StartPod(t.Context(), fake.Pod{
			Namespace: "n", Name: "p", UID: fmt.Sprint("uid-", i), Containers: []string{"c"}, Annotations: long,
			ContainerAnnotations: long,
		}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := New(dial(t, path), crilist.Options{}).List(t.Context())
	if err != nil || len(got) != 13 || len(got["uid-12"]) != 2 {
		t.Fatalf("got %d of 13 pods, with %d of 2 in the last: %v", len(got), len(got["uid-12"]), err)
	}
}

// TestARuntimeWithoutEvents has a runtime end the stream at once, as CRI-O does unless it is configured otherwise.
func TestARuntimeWithoutEvents(t *testing.T) {
	rt := fake.NewRuntime(time.Now)
	rt.ActAsCRIO()
	path := t.TempDir() + "/cri.sock"
	stop, err := rt.Serve(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	err = New(dial(t, path), crilist.Options{}).Stream(t.Context(), func() {}, nil)
	if !errors.Is(err, relist.ErrNoStream) {
		t.Errorf("%v, want %v", err, relist.ErrNoStream)
	}
}
