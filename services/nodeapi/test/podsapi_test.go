package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/podssocket"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// startPodsSocket makes the socket of the Pods API as podsync does.
func (e *testNode) startPodsSocket() (stop func()) {
	e.t.Helper()
	l, err := unixgrpc.Listen(e.config.Service.PodsAPISocket(), 0o660, role.GroupNode)
	if err != nil {
		e.t.Fatal(err)
	}
	s := &podssocket.Server{
		RootDir: e.dir, Peers: e.config.Service.Peers(), Log: slog.New(slog.DiscardHandler), Count: func(string) {},
	}
	return e.Run(func(ctx context.Context) error { return s.Run(ctx, l) })
}

func (e *testNode) podsClient() podsv1alpha1.PodsClient {
	e.t.Helper()
	conn, err := grpc.NewClient("unix://"+podssocket.Path(e.dir),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	return podsv1alpha1.NewPodsClient(conn)
}

// awaitPods lists pods until they have these UIDs, or the call this code.
func (e *testNode) awaitPods(code codes.Code, uids ...string) {
	e.t.Helper()
	c := e.podsClient()
	last := ""
	defer func() { e.t.Log("the last answer of the Pods API:", last) }()
	proctest.Await(e.t, slack, fmt.Sprintf("the Pods API answers %v %v", code, uids), func() bool {
		list, err := c.ListPods(e.t.Context(), &podsv1alpha1.ListPodsRequest{})
		var got []string
		for _, data := range list.GetPods() {
			var p v1.Pod
			if err := p.Unmarshal(data); err != nil {
				e.t.Fatal(err)
			}
			got = append(got, string(p.UID))
		}
		last = fmt.Sprint(got, err)
		return status.Code(err) == code && slices.Equal(got, uids)
	})
}

// TestPodsAPI has nodeapi, as its own user, serve the socket in a folder of root, where a kubelet was before.
func TestPodsAPI(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	folder := filepath.Dir(podssocket.Path(e.dir))
	kill := e.startAsItsUser() // before podsync
	if err := os.Mkdir(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	kubelet, err := net.ListenUnix("unix", &net.UnixAddr{Name: podssocket.Path(e.dir), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	kubelet.SetUnlinkOnClose(false)
	if err := kubelet.Close(); err != nil {
		t.Fatal(err)
	}
	e.awaitPods(codes.Unavailable)
	e.startPodsSocket()
	e.awaitPods(codes.FailedPrecondition)
	e.startPeers()
	e.awaitPods(codes.OK, "p-uid")

	watch, err := e.podsClient().WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	follows := func(want string) (p v1.Pod) {
		t.Helper()
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Unmarshal(event.GetPod()); err != nil {
			t.Fatal(err)
		}
		if got := event.GetType().String() + " " + string(p.UID); got != want {
			t.Fatalf("the next event is %q, want %q", got, want)
		}
		return p
	}
	follows("ADDED p-uid")
	follows("INITIAL_SYNC_COMPLETE ")
	e.status.Put(subject.PodKey("p-uid"),
		&podsyncv1.PodStatus{Status: marshal(t, &v1.PodStatus{Phase: v1.PodSucceeded})})
	if p := follows("MODIFIED p-uid"); p.Status.Phase != v1.PodSucceeded || len(p.Spec.Containers) != 1 {
		t.Errorf("a pod that has ended is %v", p)
	}
	e.pods.Delete(subject.PodKey("p-uid"))
	follows("DELETED p-uid")

	t.Log("the bus is away, and nodeapi starts again")
	e.StopBus()
	e.awaitPods(codes.OK)
	e.StartBus()
	if err := os.Chown(e.config.Service.BusSocket(), 47108, -1); err != nil {
		t.Fatal(err)
	}
	e.addPod("q")
	e.awaitPods(codes.OK, "q-uid")
	follows("ADDED q-uid")
	kill()
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v", err)
	}
	e.awaitPods(codes.Unavailable)
	e.startAsItsUser()
	e.awaitPods(codes.OK, "q-uid")
	for path, want := range map[string]fs.FileMode{
		podssocket.Path(e.dir): fs.ModeSocket | 0o755, folder: fs.ModeDir | 0o750,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has the mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// TestPodsAPIWithoutItsGate: nodeapi does not ask for the socket.
func TestPodsAPIWithoutItsGate(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.kubelet().FeatureGates = map[string]bool{"PodsAPI": false}
	e.startPeers()
	e.startPodsSocket()
	e.start()
	e.user("jane get_proxy").awaitGet(slack, "/runningpods/", 200)
	if _, err := os.Lstat(podssocket.Path(e.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a socket, or %v", err)
	}
}
