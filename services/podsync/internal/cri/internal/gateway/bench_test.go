package gateway

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const testImage = "registry.example/app:1"

// bench is a fake runtime with a gateway before it, each on real sockets.
type bench struct {
	fake    *fake.Runtime
	direct  *grpc.ClientConn
	byRole  map[role.Role]*grpc.ClientConn
	sockets map[role.Role]string
	stop    func()
	sandbox string
	// container runs, with the label app=web. Its pod declares the exec probe "hello", of 5 s.
	container   string
	gateway     *Gateway
	index       *containers.Index
	checkpoints string
	passed      *passedOn
	pods        []string // the UIDs that podsync knows
}

// passedOn notes the requests that reach the runtime, and makes checkpoints, which the fake has none of.
type passedOn struct {
	grpc.ClientConnInterface
	mu       sync.Mutex
	requests map[string][][]byte // by method
}

// Invoke implements grpc.ClientConnInterface.
func (p *passedOn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	p.mu.Lock()
	p.requests[nameOf(method)] = append(p.requests[nameOf(method)], args.(*frame).data)
	p.mu.Unlock()
	if nameOf(method) == "CheckpointContainer" {
		return nil
	}
	return p.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// take returns what came of a method since it was asked last.
func (p *passedOn) take(method string) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer delete(p.requests, method)
	return p.requests[method]
}

// anyone makes this process act as the role of the socket that it opens.
func anyone(int) []role.Role { return role.All() }

func newBench(t *testing.T, roles func(int) []role.Role) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bench{fake: fake.NewRuntime(nil), byRole: map[role.Role]*grpc.ClientConn{},
		sockets: map[role.Role]string{}}
	stopRuntime, err := b.fake.Serve(filepath.Join(dir, "runtime.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopRuntime)
	b.stop = stopRuntime
	b.direct = dial(t, filepath.Join(dir, "runtime.sock"))
	b.passed, b.index, b.checkpoints = &passedOn{ClientConnInterface: b.direct, requests: map[string][][]byte{}},
		&containers.Index{}, filepath.Join(dir, "checkpoints")
	if err := os.Mkdir(b.checkpoints, 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{
		Runtime:     b.passed,
		Image:       b.passed,
		Lists:       crilist.New(b.direct, b.direct, crilist.Options{Pods: func() ([]string, error) { return b.pods, nil }}),
		Peers:       unixgrpc.Rules{Roles: roles},
		Containers:  b.index,
		Checkpoints: b.checkpoints,
		Log:         slog.New(slog.DiscardHandler),
	})
	b.gateway = g
	if err != nil {
		t.Fatal(err)
	}
	listeners := map[role.Role]net.Listener{}
	for _, r := range Roles() {
		path := filepath.Join(dir, string(r)+".sock")
		if listeners[r], err = unixgrpc.Listen(path, 0o600, -1); err != nil {
			t.Fatal(err)
		}
		b.byRole[r], b.sockets[r] = dial(t, path), path
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, listeners) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	b.fill(t)
	return b
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		// What is not read stays with the gateway.
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *bench) fill(t *testing.T) {
	t.Helper()
	b.fake.AddImage(testImage)
	rt := runtimeapi.NewRuntimeServiceClient(b.direct)
	sb, err := rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
		Labels:   map[string]string{"app": "web"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ct, err := rt.CreateContainer(t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
			Image:    &runtimeapi.ImageSpec{Image: testImage},
			Labels:   map[string]string{"app": "web"},
		}})
	if err != nil {
		t.Fatal(err)
	}
	b.fake.SetProgram("web", fake.Program{Exec: func(_ context.Context, cmd []string) ([]byte, []byte, int32, error) {
		return []byte(strings.Join(cmd, " ")), []byte("careful"), 3, nil
	}})
	if _, err := rt.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: ct.ContainerId}); err != nil {
		t.Fatal(err)
	}
	b.sandbox, b.container = sb.PodSandboxId, ct.ContainerId
	b.index.SetPod(webPod())
	b.index.SetState("u1", &pod.State{UID: "u1", Containers: []pod.Container{{ID: b.container, Name: "web"}}})
	b.index.SetComplete()
}

// webPod has probes of each kind.
func webPod() *v1.Pod {
	exec := func(timeout int32, command ...string) *v1.Probe {
		return &v1.Probe{TimeoutSeconds: timeout, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: command}}}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"},
		Spec: v1.PodSpec{Containers: []v1.Container{
			{
				Name:           "web",
				Env:            []v1.EnvVar{{Name: "WHERE", Value: "/tmp/x"}},
				StartupProbe:   exec(1, "cat", "$(WHERE)"),
				LivenessProbe:  exec(5, "hello"),
				ReadinessProbe: exec(2, "hello"),
			},
			{Name: "other", LivenessProbe: exec(1, "other"),
				ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}},
		}},
	}
}

// through is a connection that takes, for each method, the socket of a role that has it.
type through struct{ b *bench }

func (c through) conn(method string) (*grpc.ClientConn, error) {
	for _, r := range Roles() {
		if Allowed(r, method) {
			return c.b.byRole[r], nil
		}
	}
	return nil, status.Errorf(codes.PermissionDenied, "no role may call %s", method)
}

// Invoke implements grpc.ClientConnInterface.
func (c through) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.conn(method)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c through) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.conn(method)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}
