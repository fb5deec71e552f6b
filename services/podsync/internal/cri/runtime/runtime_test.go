package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/calllimit"
)

func TestErrorsTellTheStep(t *testing.T) {
	b := newBench(t, Options{})
	sb := b.sandbox("u1", 0)
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Image:    &runtimeapi.ImageSpec{Image: testImage},
		Labels:   labelsOf("u1", "app"),
	}
	b.fake.Fail("CreateContainer", status.Error(codes.Unknown, "no space left on device"))
	_, err := b.rt.StartContainer(t.Context(), sb, cfg, nil, false, nil)
	var create *CreateError
	if !errors.As(err, &create) || create.Container != "app" || Message(err) != "no space left on device" {
		t.Fatalf("got %v", err)
	}
	b.fake.Fail("CreateContainer", nil)
	b.fake.SetProgram("app", fake.Program{StartErr: errors.New(`exec: "nope": not found`)})
	id, err := b.rt.StartContainer(t.Context(), sb, cfg, nil, false, nil)
	var start *StartError
	if !errors.As(err, &start) || id == "" || start.ID != id || !strings.Contains(Message(err), `"nope": not found`) {
		t.Fatalf("got %q, %v", id, err)
	}
}

func TestGoneIsSuccess(t *testing.T) {
	b := newBench(t, Options{})
	for _, method := range []string{"StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"} {
		b.fake.Fail(method, status.Error(codes.NotFound, "gone"))
	}
	err := errors.Join(
		b.rt.StopContainer(t.Context(), "x", time.Second), b.rt.RemoveContainer(t.Context(), "x"),
		b.rt.StopSandbox(t.Context(), "x"), b.rt.RemoveSandbox(t.Context(), "x"),
	)
	if err != nil {
		t.Fatal(err)
	}
	b.fake.Fail("StopContainer", status.Error(codes.Internal, "broken"))
	if err := b.rt.StopContainer(t.Context(), "x", 0); err == nil {
		t.Fatal("a failure to stop was hidden")
	}
}

func TestStopWaitsForTheGracePeriodAndNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Limits: calllimit.Limits{Slots: 1}})
		b.fake.SetProgram("deaf", fake.Program{StopDelay: time.Hour})
		id := b.container("u1", b.sandbox("u1", 0), "deaf", 0, nil)
		begun := time.Now()
		stopped := make(chan error)
		go func() { stopped <- b.rt.StopContainer(t.Context(), id, 9500*time.Millisecond) }()
		synctest.Wait()
		b.sandbox("u2", 0) // must not wait for the stop
		if time.Since(begun) != 0 {
			t.Fatal("a sandbox waited for a container to stop")
		}
		if err := <-stopped; err != nil || time.Since(begun) != 10*time.Second {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		for _, method := range []string{"RunPodSandbox", "ListContainers", "StopContainer"} {
			defer b.fake.Hang(method)()
		}
		for _, call := range []struct {
			name string
			want time.Duration
			run  func() error
		}{
			{"run sandbox", 4 * time.Minute,
				func() error { _, err := b.rt.RunSandbox(t.Context(), b.sandboxConfig("u1", 0), "", false); return err }},
			{"state", 2 * time.Minute, func() error { _, err := b.rt.State(t.Context(), "u1"); return err }},
			{"stop", 2*time.Minute + 30*time.Second,
				func() error { return b.rt.StopContainer(t.Context(), "x", 30*time.Second) }},
		} {
			begun := time.Now()
			if err := call.run(); status.Code(err) != codes.DeadlineExceeded || time.Since(begun) != call.want {
				t.Errorf("%s: after %v: %v; want the deadline after %v", call.name, time.Since(begun), err, call.want)
			}
		}
	})
}

func TestHungSandboxesDoNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Limits: calllimit.Limits{Slots: 2, Reserve: 1}})
		release := b.fake.Hang("RunPodSandbox")
		for i := range 2 {
			go func() {
				if _, err := b.rt.RunSandbox(t.Context(), b.sandboxConfig(fmt.Sprint("hung", i), 0), "", false); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		begun := time.Now()
		if err := b.rt.RemoveContainer(t.Context(), "x"); err != nil || time.Since(begun) != 5*time.Second {
			t.Errorf("after %v: %v; want 5s", time.Since(begun), err)
		}
		release()
		synctest.Wait()
	})
}

func TestReconnectsAndCounts(t *testing.T) {
	f := fake.NewRuntime(nil)
	socket := filepath.Join(t.TempDir(), "cri.sock")
	reg := prometheus.NewRegistry()
	s, err := Dial(DialOptions{RuntimeEndpoint: "unix://" + socket, Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	rt, err := New(s.Runtime, s.Image, Options{Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Version(t.Context()); !IsUnavailable(err) {
		t.Fatalf("no server: got %v, want Unavailable", err)
	}
	for range 2 { // the runtime starts, and restarts
		stop, err := f.Serve(socket)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for {
			_, err := rt.Version(t.Context())
			if err == nil {
				break
			}
			if !IsUnavailable(err) || time.Since(begun) > 10*time.Second {
				t.Fatalf("after %v: %v", time.Since(begun), err)
			}
		}
		stop()
	}
	metrics, err := testutil.GatherAndCount(reg, "kubelet_runtime_operations_errors_total")
	if err != nil || metrics != 1 {
		t.Fatalf("%d series of errors, %v", metrics, err)
	}
}

func TestOperationTypesAreTheKubelets(t *testing.T) {
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/RunPodSandbox":            "run_podsandbox",
		"/runtime.v1.RuntimeService/UpdateContainerResources": "update_container",
		"/runtime.v1.RuntimeService/ListPodSandboxStats":      "list_podsandbox_stats",
		"/runtime.v1.RuntimeService/ExecSync":                 "exec_sync",
		"/runtime.v1.ImageService/ImageFsInfo":                "image_fs_info",
		"/runtime.v1.RuntimeService/GetContainerEvents":       "get_container_events",
	} {
		if got := operation(method); got != want {
			t.Errorf("%s: got %s, want %s", method, got, want)
		}
	}
}

func TestDialRefusesABadEndpoint(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "ftp://x"} {
		if s, err := Dial(DialOptions{RuntimeEndpoint: endpoint}); err == nil {
			t.Errorf("%q was taken: %v", endpoint, errors.Join(s.Close()))
		} else if !strings.Contains(err.Error(), "containerRuntimeEndpoint") {
			t.Errorf("%q: the error does not name the field: %v", endpoint, err)
		}
	}
}
