package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// cri is a role's socket.
func (n *node) cri(r role.Role) runtimeapi.RuntimeServiceClient {
	n.t.Helper()
	s := n.Service()
	conn, err := grpc.NewClient("unix://"+s.CRISocket(r), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return runtimeapi.NewRuntimeServiceClient(conn)
}

// TestTheGatewayKnowsThePods: what may be run in a container, and where its checkpoint may go, is decided by
// the pod's manifest, also after a restart, and never by what is not known yet.
func TestTheGatewayKnowsThePods(t *testing.T) {
	n := newNode(t)
	n.write("a.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: a, namespace: ns}
spec:
  containers:
  - name: c-a
    image: %q
    env: [{name: WHERE, value: /healthy}]
    livenessProbe: {exec: {command: [cat, $(WHERE)]}, timeoutSeconds: 3}
`, image))
	// Another program may have left the folder open to others.
	if err := os.MkdirAll(filepath.Join(n.root, "checkpoints"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := n.start()
	id := n.runs("a")
	prober, nodeapi := n.cri(role.Prober), n.cri(role.NodeAPI)
	run := func(command ...string) codes.Code {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := prober.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 3})
		return status.Code(err)
	}
	save := func(folder string) codes.Code {
		_, err := nodeapi.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{
			ContainerId: id,
			Location:    filepath.Join(folder, "checkpoint-a-"+bustest.NodeName+"_ns-c-a-2026-03-04T05:06:07Z.tar"),
		})
		return status.Code(err)
	}
	decided := func(when string) {
		t.Helper()
		proctest.Await(t, soon, when+": the declared probe runs", func() bool {
			got := run("cat", "/healthy")
			if got == codes.PermissionDenied {
				t.Fatalf("%s: the declared probe is denied", when)
			}
			return got == codes.OK
		})
		if got := run("sh", "-c", "id"); got != codes.PermissionDenied {
			t.Errorf("%s: another command: %v", when, got)
		}
		if got := save(t.TempDir()); got != codes.PermissionDenied {
			t.Errorf("%s: a checkpoint elsewhere: %v", when, got)
		}
		if got := save(filepath.Join(n.root, "checkpoints")); got != codes.Unimplemented { // by the runtime
			t.Errorf("%s: a checkpoint: %v", when, got)
		}
	}
	decided("at first")

	p.Signal(9)
	_ = p.End(soon) // it was killed
	release := n.runtime.Hang("ListPodSandbox")
	n.start()
	proctest.Await(t, soon, "podsync is back and has not read its pods", func() bool {
		got := run("cat", "/healthy")
		if got == codes.PermissionDenied {
			t.Fatal("a container that is not known yet is denied")
		}
		return got == codes.Unavailable && n.runtime.InFlight("ListPodSandbox") > 0
	})
	release()
	decided("after a restart")
	for _, c := range n.runtime.Calls("ExecSync") {
		if got := c.Request.(*runtimeapi.ExecSyncRequest).GetCmd()[0]; got != "cat" {
			t.Errorf("%q came to the runtime", got)
		}
	}
}
