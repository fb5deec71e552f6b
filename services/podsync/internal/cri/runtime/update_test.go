package runtime

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestUpdateContainer shows the new resources in the next state, and asks for them once.
func TestUpdateContainer(t *testing.T) {
	b := newBench(t, Options{})
	sandbox := b.sandbox("u1", 0)
	id := b.container("u1", sandbox, "a", 0, func(c *runtimeapi.ContainerConfig) {
		c.Linux = &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 64},
		}
	})
	other := b.container("u1", sandbox, "b", 0, nil)
	b.state("u1")
	if err := b.rt.UpdateContainer(t.Context(), "u1", id, &runtimeapi.LinuxContainerResources{CpuShares: 8}); err != nil {
		t.Fatal(err)
	}
	b.fake.ForgetCalls()
	for range 2 {
		s := b.state("u1")
		got := s.Latest("a").Resources.GetLinux()
		if got.GetCpuShares() != 8 || got.GetMemoryLimitInBytes() != 64 || s.Latest("b").ID != other {
			t.Errorf("resources %v", got)
		}
	}
	if n := len(b.fake.Calls("ContainerStatus")); n != 1 {
		t.Errorf("%d container statuses, want that of the changed container once", n)
	}
	if err := b.rt.UpdateContainer(t.Context(), "u1", "gone", nil); !IsNotFound(err) {
		t.Errorf("a container that is gone: %v", err)
	}
	if err := b.rt.UpdateContainer(t.Context(), "unknown", id, nil); err != nil {
		t.Errorf("a pod that was not read: %v", err)
	}
}

// TestAReadBeforeAnUpdateIsNotKept: it may have been answered before, and ended after.
func TestAReadBeforeAnUpdateIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		id := b.container("u1", b.sandbox("u1", 0), "a", 0, nil)
		before := b.state("u1")
		time.Sleep(time.Second)
		if err := b.rt.UpdateContainer(t.Context(), "u1", id, &runtimeapi.LinuxContainerResources{CpuShares: 8}); err != nil {
			t.Fatal(err)
		}
		b.rt.known.learn(before, nil)
		time.Sleep(time.Second)
		if got := b.state("u1").Latest("a").Resources.GetLinux().GetCpuShares(); got != 8 {
			t.Errorf("%d shares", got)
		}
		b.fake.ForgetCalls()
		b.state("u1")
		if n := len(b.fake.Calls("ContainerStatus")); n != 0 {
			t.Errorf("%d container statuses of what is known", n)
		}
	})
}

func TestUpdateSandbox(t *testing.T) {
	b := newBench(t, Options{})
	id := b.sandbox("u1", 0)
	for name, test := range map[string]struct {
		answer error
		fails  bool
	}{
		"done":             {nil, false},
		"unknown call":     {status.Error(codes.Unimplemented, "unknown method"), false},
		"not implemented":  {status.Error(codes.Unknown, "not implemented yet"), false},
		"refused":          {status.Error(codes.Unknown, "the virtual machine has no more memory"), true},
		"not implemented?": {status.Error(codes.Internal, "not implemented yet"), true},
	} {
		b.fake.Fail("UpdatePodSandboxResources", test.answer)
		err := b.rt.UpdateSandbox(t.Context(), id, &runtimeapi.LinuxContainerResources{}, nil)
		if (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}
