package gateway

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const runtimeService = "/runtime.v1.RuntimeService/"

// unread makes a call and reads nothing of its answer before the test ends, or the caller does.
func unread(t *testing.T, b *bench, r role.Role, method string, request proto.Message) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := b.byRole[r].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, runtimeService+method)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(request); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return cancel
}

// manyLists is one of those for all sandboxes. Each has a field of its own, so that they share no answer. The request
// of the stream has the same fields.
func manyLists(i int) *runtimeapi.ListPodSandboxRequest {
	q := &runtimeapi.ListPodSandboxRequest{}
	q.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), uint64(i)))
	return q
}

// asks reports whether a list is answered to a role.
func asks(t *testing.T, b *bench, r role.Role, patience time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := runtimeapi.NewRuntimeServiceClient(b.byRole[r]).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil && status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%s: %v", r, err)
	}
	return err == nil
}

// TestAnswersThatAreNotRead: who asks for lists and does not read them has podsync keep few of them, and takes no place
// of another role.
func TestAnswersThatAreNotRead(t *testing.T) {
	for _, method := range []string{"ListPodSandbox", "StreamPodSandboxes"} {
		t.Run(method, func(t *testing.T) {
			b := newBench(t, anyone)
			for i := range 2 {
				b.pods = append(b.pods, fmt.Sprint("uid-", i))
				if _, _, err := b.fake.StartPod(t.Context(), fake.Pod{
					UID: b.pods[i], Annotations: map[string]string{"long": strings.Repeat("x", 1<<20)},
				}); err != nil {
					t.Fatal(err)
				}
			}
			var leave []func()
			for i := range 50 {
				leave = append(leave, unread(t, b, role.PLEG, method, manyLists(i)))
			}
			waitUntil(t, "lists are asked for", func() bool { return len(b.fake.Calls("ListPodSandbox")) >= listsAtOnce })
			if asks(t, b, role.PLEG, 500*time.Millisecond) {
				t.Error("a further list is kept although none was read")
			}
			if n := len(b.fake.Calls("ListPodSandbox")); n != listsAtOnce {
				t.Errorf("%d lists are kept", n)
			}
			if !asks(t, b, role.Stats, time.Minute) {
				t.Error("another role waits")
			}
			for _, l := range leave {
				l()
			}
			if !asks(t, b, role.PLEG, time.Minute) {
				t.Error("no list after the others were given up")
			}
		})
	}
}

// TestManyListsOneAfterTheOther: who asks without end has the runtime make so many lists, and takes nothing of another
// role.
func TestManyListsOneAfterTheOther(t *testing.T) {
	b := newBench(t, anyone)
	const more = listsASecond / 4
	began := time.Now()
	for range listsBurst + more {
		if !asks(t, b, role.PLEG, time.Minute) {
			t.Fatal("a list is not answered")
		}
	}
	if took := time.Since(began); took < more*time.Second/listsASecond {
		t.Errorf("%d lists take %v", listsBurst+more, took)
	}
	if !asks(t, b, role.Stats, time.Minute) {
		t.Error("another role waits")
	}
}

// TestAnswersOfAConnectionThatEnds: what a caller has not read gives its place back when its connection ends.
func TestAnswersOfAConnectionThatEnds(t *testing.T) {
	b := newBench(t, anyone)
	if _, _, err := b.fake.StartPod(t.Context(), fake.Pod{
		UID: "u", Annotations: map[string]string{"long": strings.Repeat("x", 1<<20)},
	}); err != nil {
		t.Fatal(err)
	}
	for i := range listsAtOnce {
		unread(t, b, role.PLEG, "ListPodSandbox", manyLists(i))
	}
	waitUntil(t, "lists are kept", func() bool { return !asks(t, b, role.PLEG, 100*time.Millisecond) })
	if err := b.byRole[role.PLEG].Close(); err != nil {
		t.Fatal(err)
	}
	b.byRole[role.PLEG] = dial(t, b.sockets[role.PLEG])
	if !asks(t, b, role.PLEG, time.Minute) {
		t.Error("the lists of a caller that is gone are kept")
	}
}

// hanging is a runtime in which the first commands do not end.
type hanging struct {
	grpc.ClientConnInterface
	left chan struct{}
}

func (h hanging) Invoke(ctx context.Context, _ string, _, reply any, _ ...grpc.CallOption) (err error) {
	select {
	case <-h.left:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	default:
		reply.(*frame).data, err = proto.Marshal(&runtimeapi.ExecSyncResponse{Stdout: []byte("hi")})
		return err
	}
}

// hang makes this many of the runtime's next commands hang.
func hang(b *bench, n int) (left chan struct{}) {
	left = make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	b.passed.ClientConnInterface = hanging{left: left}
	return left
}

// probeOf is the liveness probe of the bench's pod, in an instance of its container.
func probeOf(container string) *runtimeapi.ExecSyncRequest {
	return &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"hello"}, Timeout: 1}
}

// TestCommandsThatHang keep no place from the commands in other containers.
func TestCommandsThatHang(t *testing.T) {
	b := newBench(t, anyone)
	left := hang(b, 3*callsAtOnce)
	state := &pod.State{UID: "u1", Containers: []pod.Container{{ID: b.container, Name: "web"}}}
	for i := range cap(left) {
		state.Containers = append(state.Containers, pod.Container{ID: fmt.Sprint("web-", i), Name: "web"})
	}
	b.index.SetState("u1", state)
	for i := range cap(left) {
		unread(t, b, role.Prober, "ExecSync", probeOf(fmt.Sprint("web-", i)))
	}
	waitUntil(t, "all commands hang", func() bool { return len(left) == 0 })
	a, err := runtimeapi.NewRuntimeServiceClient(b.byRole[role.Prober]).ExecSync(t.Context(), probeOf(b.container))
	if err != nil || string(a.Stdout) != "hi" {
		t.Errorf("%q, %v", a.GetStdout(), err)
	}
}

// TestManyCommandsInAContainer: the prober cannot have the runtime and podsync keep what any number of commands print.
func TestManyCommandsInAContainer(t *testing.T) {
	b := newBench(t, anyone)
	left := hang(b, commandsAtOnce)
	var leave []func()
	for range cap(left) {
		leave = append(leave, unread(t, b, role.Prober, "ExecSync", probeOf(b.container)))
	}
	waitUntil(t, "all commands hang", func() bool { return len(left) == 0 })
	prober := runtimeapi.NewRuntimeServiceClient(b.byRole[role.Prober])
	if a, err := prober.ExecSync(t.Context(), probeOf(b.container)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a further command: %q, %v", a.GetStdout(), err)
	}
	for _, l := range leave {
		l()
	}
	waitUntil(t, "a command runs after the others were given up", func() bool {
		_, err := prober.ExecSync(t.Context(), probeOf(b.container))
		return err == nil
	})
}
