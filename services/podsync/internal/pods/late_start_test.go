package pods

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAStartThatSucceededLateLeavesNoReason why the container does not run.
func TestAStartThatSucceededLateLeavesNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.cri.Fail("StartContainer", context.DeadlineExceeded)
		n.apply(p)
		if waiting := n.container("c").State.Waiting; waiting == nil || waiting.Reason != reasonRunContainerError {
			t.Fatalf("state %+v", n.container("c").State)
		}
		n.cri.Fail("StartContainer", nil)
		if _, err := runtimeapi.NewRuntimeServiceClient(n.cri.Conn()).StartContainer(t.Context(),
			&runtimeapi.StartContainerRequest{ContainerId: n.state(p).Latest("c").ID}); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		if !n.running("a") {
			t.Fatalf("state %+v", n.container("c").State)
		}
		n.cri.SetLatency("CreateContainer", time.Minute)
		n.crash(p, "c", 1)
		if state := n.container("c").State; state.Terminated == nil {
			t.Fatalf("it has run and ended, and is reported as %+v", state)
		}
	})
}
