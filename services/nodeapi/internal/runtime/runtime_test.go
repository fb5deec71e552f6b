package runtime

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/testing/fake"
)

// start runs a container of a pod, and returns its sandbox's id and its own.
func start(t *testing.T, f *fake.Runtime, pod, name string) (string, string) {
	t.Helper()
	sandbox, ids, err := f.StartPod(t.Context(),
		fake.Pod{Namespace: "ns", Name: pod, UID: pod, Containers: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox, ids[name]
}

func TestWhatRunsIsFound(t *testing.T) {
	f := fake.NewRuntime(nil)
	r := New(f.Conn(), crilist.Options{}, time.Second)
	sandbox, container := start(t, f, "one", "c")
	start(t, f, "two", "c")
	if id, err := r.Container(t.Context(), Pod{"ns", "one", "one"}, "c"); err != nil || id != container {
		t.Errorf("the container is %q, %v, want %q", id, err, container)
	}
	if _, err := r.Container(t.Context(), Pod{"ns", "one", "one"}, "other"); !errors.Is(err, ErrNoContainer) ||
		err.Error() != `container not found ("other")` {
		t.Errorf("another container: %v", err)
	}
	if id, err := r.Sandbox(t.Context(), Pod{"ns", "one", "one"}); err != nil || id != sandbox {
		t.Errorf("the sandbox is %q, %v, want %q", id, err, sandbox)
	}
	if _, err := r.Sandbox(t.Context(), Pod{"ns", "three", "three"}); !errors.Is(err, ErrNoSandbox) {
		t.Errorf("another pod: %v", err)
	}
	running, err := r.Pods(t.Context())
	if err != nil || len(running) != 2 || running[0].Name != "one" || len(running[0].Containers) != 1 {
		t.Errorf("running are %v, %v", running, err)
	}
	if err := f.ExitContainer(container, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Container(t.Context(), Pod{"ns", "one", "one"}, "c"); !errors.Is(err, ErrNoContainer) {
		t.Errorf("a container that has ended: %v", err)
	}
}

// TestReadersShareAStatus is what keeps followers of logs from slowing the runtime.
func TestReadersShareAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.NewRuntime(nil)
		r := New(f.Conn(), crilist.Options{}, time.Second)
		_, container := start(t, f, "one", "c")
		f.SetLatency("ContainerStatus", 10*time.Millisecond)
		f.ForgetCalls()
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				for range 50 { // 5 s
					if _, err := r.Status(t.Context(), container); err != nil {
						t.Error(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if n := len(f.Calls("ContainerStatus")); n < 4 || n > 7 {
			t.Errorf("200 readers for 5 s made %d calls, want one a second", n)
		}
		if err := f.ExitContainer(container, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusAge)
		if s, err := r.Status(t.Context(), container); err != nil ||
			s.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("a second after its end the container is %v, %v", s.GetStatus().GetState(), err)
		}
	})
}

func TestACallerThatLeavesEndsNoOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.NewRuntime(nil)
		r := New(f.Conn(), crilist.Options{}, time.Minute)
		_, container := start(t, f, "one", "c")
		f.SetLatency("ContainerStatus", time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { _, err := r.Status(ctx, container); left <- err }()
		synctest.Wait()
		stayed := make(chan error, 1)
		go func() { _, err := r.Status(t.Context(), container); stayed <- err }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		if err := <-stayed; err != nil {
			t.Errorf("who stayed: %v", err)
		}
	})
}

func TestARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.NewRuntime(nil)
		r := New(f.Conn(), crilist.Options{}, time.Second)
		defer f.Hang("ListContainers")()
		began := time.Now()
		if _, err := r.Container(t.Context(), Pod{"ns", "one", "one"}, "c"); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v, want the deadline", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestStreamingAddress(t *testing.T) {
	for text, ok := range map[string]bool{
		"http://127.0.0.1:1/exec/x":  true,
		"https://127.0.0.1:1/exec/x": true,
		"/exec/x":                    false,
		"":                           false,
		"unix:///run/x":              false,
		"file:///etc":                false,
		"http:// ":                   false,
	} {
		if _, err := address(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
