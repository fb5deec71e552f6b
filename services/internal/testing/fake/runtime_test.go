package fake

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// start runs a sandbox with one running container in it.
func start(t *testing.T, conn grpc.ClientConnInterface, name string) (sandboxID, containerID string) {
	t.Helper()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	sb, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Labels:   map[string]string{"pod": name},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ct, err := c.CreateContainer(t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: "busybox:1"},
			Labels:   map[string]string{"pod": name},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: ct.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return sb.PodSandboxId, ct.ContainerId
}

func statusOf(t *testing.T, conn grpc.ClientConnInterface, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	resp, err := runtimeapi.NewRuntimeServiceClient(conn).ContainerStatus(t.Context(),
		&runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status
}

func TestProgramsRunInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRuntime(nil)
		r.AddImage("busybox:1")
		r.SetProgram("job", Program{Lifetime: time.Hour, ExitCode: 3})
		r.SetProgram("deaf", Program{StopDelay: time.Hour})
		client := runtimeapi.NewRuntimeServiceClient(r.Conn())

		_, job := start(t, r.Conn(), "job")
		_, deaf := start(t, r.Conn(), "deaf")
		time.Sleep(time.Hour - time.Second)
		if st := statusOf(t, r.Conn(), job); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("the job is %s before its hour", st.State)
		}
		time.Sleep(2 * time.Second)
		if st := statusOf(t, r.Conn(), job); st.ExitCode != 3 || st.Reason != "Error" ||
			st.FinishedAt-st.StartedAt != int64(time.Hour) {
			t.Fatalf("the job ended as %v", st)
		}

		begun := time.Now()
		if _, err := client.StopContainer(t.Context(),
			&runtimeapi.StopContainerRequest{ContainerId: deaf, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		if took, st := time.Since(begun), statusOf(t, r.Conn(), deaf); took != 30*time.Second ||
			st.ExitCode != killedCode {
			t.Fatalf("stopped after %v with %d", took, st.ExitCode)
		}
	})
}

func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRuntime(nil)
		client := runtimeapi.NewRuntimeServiceClient(r.Conn())
		r.SetLatency("Version", time.Minute)
		begun := time.Now()
		if _, err := client.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil ||
			time.Since(begun) != time.Minute {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
		r.Fail("Status", status.Error(codes.Internal, "broken"))
		if _, err := client.Status(t.Context(), &runtimeapi.StatusRequest{}); status.Code(err) != codes.Internal {
			t.Fatalf("got %v, want Internal", err)
		}
		release := r.Hang("ListContainers")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.ListContainers(ctx,
			&runtimeapi.ListContainersRequest{}); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("got %v, want DeadlineExceeded", err)
		}
		time.AfterFunc(time.Minute, release)
		begun = time.Now()
		if _, err := client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil ||
			time.Since(begun) != time.Minute {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
		if n := len(r.Calls("ListContainers")); n != 2 {
			t.Fatalf("%d calls, want 2", n)
		}
	})
}

// served is a runtime on a socket.
type served struct {
	*Runtime
	socket string
	conn   *grpc.ClientConn
	stop   func()
}

func serve(t *testing.T) served {
	t.Helper()
	s := served{Runtime: NewRuntime(nil), socket: filepath.Join(t.TempDir(), "cri.sock")}
	s.AddImage("busybox:1")
	var err error
	if s.stop, err = s.Serve(s.socket); err != nil {
		t.Fatal(err)
	}
	s.conn, err = grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

func (s served) events(t *testing.T) runtimeapi.RuntimeService_GetContainerEventsClient {
	t.Helper()
	events, err := runtimeapi.NewRuntimeServiceClient(s.conn).GetContainerEvents(t.Context(),
		&runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestStateOutlivesTheServer(t *testing.T) {
	s := serve(t)
	sandboxID, containerID := start(t, s.conn, "web")
	events := s.events(t)
	s.stop()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable {
		t.Fatalf("the stream ended with %v, want Unavailable", err)
	}
	stop, err := s.Serve(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	list, err := runtimeapi.NewRuntimeServiceClient(s.conn).ListContainers(t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{PodSandboxId: sandboxID, LabelSelector: map[string]string{"pod": "web"}},
	}, grpc.WaitForReady(true))
	if err != nil || len(list.Containers) != 1 || list.Containers[0].Id != containerID {
		t.Fatalf("after the restart: %v, %v", list, err)
	}
}

func TestEventsTellWhatHappened(t *testing.T) {
	s := serve(t)
	defer s.stop()
	_, containerID := start(t, s.conn, "web")
	events := s.events(t)
	// The stream is open once the runtime knows of it; until then an event has no receiver.
	for s.EventStreams() == 0 {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ExitContainer(containerID, 7); err != nil {
		t.Fatal(err)
	}
	ev, err := events.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if ev.ContainerId != containerID ||
		ev.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		len(ev.ContainersStatuses) != 1 || ev.ContainersStatuses[0].ExitCode != 7 {
		t.Fatalf("got %v", ev)
	}
}

func TestPull(t *testing.T) {
	r := NewRuntime(nil)
	images := runtimeapi.NewImageServiceClient(r.Conn())
	spec := &runtimeapi.ImageSpec{Image: "registry.example/app:1"}
	refused := errors.New("pull access denied")
	r.SetPull(spec.Image, Pull{Auth: func(a *runtimeapi.AuthConfig) error {
		if a.GetPassword() != "secret" {
			return refused
		}
		return nil
	}})
	if _, err := images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec}); err == nil {
		t.Fatal("pulled without credentials")
	}
	if st, err := images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec}); err != nil ||
		st.Image != nil {
		t.Fatalf("an image that was not pulled: %v, %v", st, err)
	}
	pulled, err := images.PullImage(t.Context(),
		&runtimeapi.PullImageRequest{Image: spec, Auth: &runtimeapi.AuthConfig{Password: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec}); err != nil ||
		st.Image.GetId() != pulled.ImageRef {
		t.Fatalf("a pulled image: %v, %v", st, err)
	}
}
