package unixgrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const (
	check = grpc_health_v1.Health_Check_FullMethodName
	watch = grpc_health_v1.Health_Watch_FullMethodName
	list  = grpc_health_v1.Health_List_FullMethodName

	// callerEnv makes the test binary a caller of the socket that it names.
	callerEnv = "UNIXGRPC_TEST_SOCKET"
	// holdPrefix, before a socket's name, makes the test's program hold as many connections to it as it can.
	holdPrefix = "hold:"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(callerEnv); path != "" {
		fmt.Print(callAsProcess(path))
		os.Exit(0)
	}
	proctest.Program(func() {
		peertest.Ready()
		if path, ok := strings.CutPrefix(os.Args[1], holdPrefix); ok {
			fmt.Println(holdAllPlaces(path))
			select {} // with the connections, until the test kills it
		}
		fmt.Println(callAsProcess(os.Args[1]))
	})
	os.Exit(m.Run())
}

// callAsProcess calls Check and prints what came of it.
func callAsProcess(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := Dial(path, DialOptions{})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true))
	return status.Code(err).String()
}

// recorder is a health server that notes who called it.
type recorder struct {
	*health.Server
	peers chan Peer
}

func (r recorder) Check(ctx context.Context,
	req *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	p, ok := PeerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no peer")
	}
	r.peers <- p
	return r.Server.Check(ctx, req)
}

// serve serves health with the policy.
func serve(t *testing.T, l net.Listener, o ServerOptions) recorder {
	t.Helper()
	r := recorder{Server: health.NewServer(), peers: make(chan Peer, 8)}
	server := NewServer(o)
	grpc_health_v1.RegisterHealthServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	return r
}

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	path := filepath.Join(closedDir(t), "s.sock")
	l, err := Listen(path, 0o666, -1)
	if err != nil {
		t.Fatal(err)
	}
	return l, path
}

func dial(t *testing.T, path string, o DialOptions) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := Dial(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

// rolesOf gives this process's UID the roles.
func rolesOf(roles ...role.Role) Rules {
	return Rules{Roles: func(uid int) []role.Role {
		if uid == os.Getuid() {
			return roles
		}
		return nil
	}}
}

func TestPolicyByTheKernelsWord(t *testing.T) {
	l, path := listen(t)
	var logged bytes.Buffer
	metrics := prometheus.NewRegistry()
	r := serve(t, l, ServerOptions{
		Policy:  NewPolicy(map[string][]role.Role{check: {role.PLEG}, watch: {role.NodeStatus}}),
		Peers:   rolesOf(role.PLEG),
		Log:     slog.New(slog.NewTextHandler(&logged, nil)),
		Metrics: metrics,
	})
	client := dial(t, path, DialOptions{})

	if _, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Fatalf("the role's own method: %v", err)
	}
	if p := <-r.peers; p.UID != os.Getuid() || p.PID != os.Getpid() || !p.Is(role.PLEG) || p.Is(role.NodeStatus) {
		t.Errorf("peer is %+v", p)
	}
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stream of another role: %v, want PermissionDenied", err)
	}
	for range 3 {
		if _, err := client.List(t.Context(),
			&grpc_health_v1.HealthListRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a method that the policy does not name: %v, want PermissionDenied", err)
		}
	}
	uid := fmt.Sprint(os.Getuid())
	want := fmt.Sprintf(`
# HELP microlet_grpc_denied_total Calls that were refused because the caller's roles do not have the method.
# TYPE microlet_grpc_denied_total counter
microlet_grpc_denied_total{method=%q,uid=%q} 1
microlet_grpc_denied_total{method="unknown",uid=%q} 3
`, watch, uid, uid)
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(want), "microlet_grpc_denied_total"); err != nil {
		t.Error(err)
	}
	if got := strings.Count(logged.String(), "gRPC call denied"); got != 2 {
		t.Errorf("logged %d lines, want one for each method:\n%s", got, &logged)
	}
}

// dialRefused connects to a server that allows no method to any caller.
func dialRefused(t *testing.T) *grpc.ClientConn {
	t.Helper()
	l, path := listen(t)
	serve(t, l, ServerOptions{Policy: NewPolicy(nil), Peers: rolesOf(role.PLEG), Log: slog.New(slog.DiscardHandler)})
	conn, err := Dial(path, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestUnknownMethodsAreDenied(t *testing.T) {
	conn := dialRefused(t)
	err := conn.Invoke(t.Context(), "/no.such.Service/Method", &grpc_health_v1.HealthCheckRequest{},
		&grpc_health_v1.HealthCheckResponse{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("error is %v, want PermissionDenied", err)
	}
}

// Who may not call gets an error before the server has read a message, which may be large and may never come.
func TestACallIsJudgedByItsHeaders(t *testing.T) {
	conn := dialRefused(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{}, check)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&grpc_health_v1.HealthCheckResponse{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a call without its message: %v, want PermissionDenied", err)
	}
}

// A container may run as a service's user, by its image alone; its pod gives it away.
func TestAServicesUserInAPodIsDenied(t *testing.T) {
	path, _ := servePLEG(t)
	pleg, err := role.Get(role.PLEG)
	if err != nil {
		t.Fatal(err)
	}
	pod := peertest.Cgroup(t, "kubepods/pod0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10/c")
	for _, c := range []struct {
		options peertest.Options
		want    codes.Code
	}{
		{peertest.Options{UID: pleg.UID}, codes.OK},
		{peertest.Options{UID: pleg.UID, Cgroups: pod}, codes.PermissionDenied},
	} {
		if got := peertest.Start(t, c.options, path).Line(t); got != c.want.String() {
			t.Errorf("%+v got %s, want %s", c.options, got, c.want)
		}
	}
}

// servePLEG serves what only pleg may call, where members of the node's group find it.
func servePLEG(t *testing.T) (path string, r recorder) {
	t.Helper()
	dir := proctest.TempDir(t, 0o750)
	if err := os.Chown(dir, 0, role.GroupNode); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "s.sock")
	l, err := Listen(path, 0o660, role.GroupNode)
	if err != nil {
		t.Fatal(err)
	}
	return path, serve(t, l, ServerOptions{
		Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG}}),
		Log:    slog.New(slog.DiscardHandler),
	})
}

// Another user's process is recognized by its UID.
func TestAnotherUserIsDenied(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: this one becomes other users")
	}
	path, r := servePLEG(t)
	pleg, err := role.Get(role.PLEG)
	if err != nil {
		t.Fatal(err)
	}
	nodestatus, err := role.Get(role.NodeStatus)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  int
		want codes.Code
	}{
		{pleg.UID, codes.OK},
		{nodestatus.UID, codes.PermissionDenied},
		{65534, codes.PermissionDenied},
	} {
		// The link to this program can be followed by whatever user the child becomes.
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), callerEnv+"="+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.uid), Gid: role.GroupNode}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("uid %d: %v: %s", c.uid, err, out)
		}
		if string(out) != c.want.String() {
			t.Errorf("uid %d got %s, want %s", c.uid, out, c.want)
		}
	}
	if p := <-r.peers; p.UID != pleg.UID || len(r.peers) != 0 {
		t.Errorf("the handler saw %+v and %d more, want pleg alone", p, len(r.peers))
	}
}

func TestClientRefusesAnImpostor(t *testing.T) {
	l, path := listen(t)
	serve(t, l, ServerOptions{Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG}}), Peers: rolesOf(role.PLEG)})
	creds := peerCredentials{
		server: role.Podsync,
		rules:  Rules{Roles: func(int) []role.Role { return []role.Role{role.PLEG} }},
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _, err = creds.ClientHandshake(t.Context(), "", conn)
	if os.Getuid() == 0 {
		if err != nil { // root may serve as anyone
			t.Errorf("root was refused: %v", err)
		}
	} else if err == nil {
		t.Error("a server of another role was taken for podsync")
	}
	// The same handshake with a server that does not run as root.
	a, b, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	impostor := &inProcessConn{Conn: a, peer: Peer{UID: 47102, Roles: []role.Role{role.PLEG}}}
	if _, _, err := creds.ClientHandshake(t.Context(), "", impostor); err == nil ||
		!strings.Contains(err.Error(), "podsync") {
		t.Errorf("error is %v, want one that names podsync", err)
	}
	impostor.peer.Roles = []role.Role{role.Podsync}
	if _, _, err := creds.ClientHandshake(t.Context(), "", impostor); err != nil {
		t.Errorf("podsync itself was refused: %v", err)
	}
}

func TestInProcessRoles(t *testing.T) {
	var network InProcess
	inside, err := network.Listen("/run/s.sock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := network.Listen("/run/s.sock"); !errors.Is(err, ErrInUse) {
		t.Errorf("a second listener: %v, want ErrInUse", err)
	}
	outside, path := listen(t)
	r := serve(t, Merge(outside, inside), ServerOptions{
		Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG, role.Up}}),
		Peers:  rolesOf(role.Up),
		Log:    slog.New(slog.DiscardHandler),
	})
	call := func(path string, o DialOptions) codes.Code {
		_, err := dial(t, path, o).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		return status.Code(err)
	}
	if got := call("/run/s.sock", DialOptions{Network: &network, Self: role.PLEG, Server: role.Podsync}); got != codes.OK {
		t.Errorf("pleg, inside: %v", got)
	}
	if p := <-r.peers; !p.Is(role.PLEG) || len(p.Roles) != 1 {
		t.Errorf("peer is %+v, want pleg and nothing else", p)
	}
	if got := call("/run/s.sock", DialOptions{Network: &network, Self: role.NodeStatus}); got != codes.PermissionDenied {
		t.Errorf("nodestatus, inside: %v, want PermissionDenied", got)
	}
	if got := call(path, DialOptions{}); got != codes.OK {
		t.Errorf("an operator's tool, through the socket: %v", got)
	}
	if got := call("/run/other.sock", DialOptions{Network: &network, Self: role.PLEG}); got != codes.Unavailable {
		t.Errorf("a socket without a server: %v, want Unavailable", got)
	}
}

func TestDialComesBack(t *testing.T) {
	path := filepath.Join(closedDir(t), "s.sock")
	client := dial(t, path, DialOptions{})
	if _, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Fatalf("before the server: %v, want Unavailable", err)
	}
	l, err := Listen(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, ServerOptions{Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG}}), Peers: rolesOf(role.PLEG)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the server came: %v", err)
	}
}

func TestCallWithoutADeadlineGetsOne(t *testing.T) {
	seen := false
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		_, seen = ctx.Deadline()
		return nil
	}
	if err := withDeadline(context.Background(), "", nil, nil, nil, invoke); err != nil || !seen {
		t.Errorf("no deadline was set: %v", err)
	}
}
