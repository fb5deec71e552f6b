package command

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// fakeUp stands in for "microlet up".
type fakeUp struct {
	supervisorv1.UnimplementedSupervisorServiceServer
	mu        sync.Mutex
	processes []*supervisorv1.Process
	restarted []string
	asked     *supervisorv1.ReadLogsRequest
	lines     chan string
}

func (u *fakeUp) GetStatus(context.Context, *supervisorv1.GetStatusRequest) (*supervisorv1.GetStatusResponse, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return &supervisorv1.GetStatusResponse{
		Version: "v1", Placement: "processes", Pid: 7, Started: timestamppb.Now(), Processes: u.processes,
	}, nil
}

// got is the last question about logs, and the names of what was restarted.
func (u *fakeUp) got() (asked *supervisorv1.ReadLogsRequest, restarted string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked, strings.Join(u.restarted, " ")
}

// serve listens as "microlet up" does in a runtime folder.
func (u *fakeUp) serve(t *testing.T) (dir string) {
	t.Helper()
	return serveAs(t, role.Up, func(s *grpc.Server) { supervisorv1.RegisterSupervisorServiceServer(s, u) })
}

// serveAs listens as a role does in a runtime folder, and offers root's tools all that is registered.
func serveAs(t *testing.T, r role.Role, register func(*grpc.Server)) (dir string) {
	t.Helper()
	dir = t.TempDir()
	socket := filepath.Join(dir, "sock", string(r), "grpc.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	policy := unixgrpc.NewPolicy(nil)
	server := unixgrpc.NewServer(unixgrpc.ServerOptions{Policy: policy})
	register(server)
	names := health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, names)
	for service, info := range server.GetServiceInfo() {
		names.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
		for _, m := range info.Methods {
			policy.Allow("/"+service+"/"+m.Name, role.Up)
		}
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return dir
}

func process(name string, state supervisorv1.State, pid int32, heartbeat time.Duration) *supervisorv1.Process {
	return &supervisorv1.Process{
		Service: name, State: state, Pid: pid, Version: "v1." + name, HeartbeatAgeMilliseconds: heartbeat.Milliseconds(),
	}
}

func TestStatusExitCode(t *testing.T) {
	u := &fakeUp{processes: []*supervisorv1.Process{
		process("bus", supervisorv1.State_STATE_READY, 8, time.Second),
		process("prober", supervisorv1.State_STATE_EXTERNAL, 9, time.Second),
	}}
	dir := u.serve(t)
	if out, err := execute(t, "status", "--exit-code", "--runtime-dir="+dir); err != nil {
		t.Errorf("all are ready: %v\n%s", err, out)
	}
	u.mu.Lock()
	u.processes = append(u.processes, process("pleg", supervisorv1.State_STATE_BACKOFF, 0, -1),
		process("stats", supervisorv1.State_STATE_EXTERNAL, 9, time.Minute))
	u.mu.Unlock()
	out, err := execute(t, "status", "--exit-code", "--runtime-dir="+dir)
	var exit service.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || err.Error() != "not ready: pleg, stats" ||
		!strings.Contains(out, "backoff") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := execute(t, "status", "--runtime-dir="+dir); err != nil {
		t.Errorf("without --exit-code: %v", err)
	}
	if got := refused(t, "status", "--exit-code", "--watch", "--runtime-dir="+dir); !strings.Contains(got, "leave out") {
		t.Error(got)
	}
}

func TestStatusOfServices(t *testing.T) {
	dir := (&fakeUp{processes: []*supervisorv1.Process{
		process("bus", supervisorv1.State_STATE_READY, 8, time.Second),
		process("pleg", supervisorv1.State_STATE_READY, 9, -1),
		process("prober", supervisorv1.State_STATE_READY, 10, -1),
		process("prober.1", supervisorv1.State_STATE_READY, 11, -1),
	}}).serve(t)
	out, err := execute(t, "status", "bus", "prober", "-o", "yaml", "--runtime-dir="+dir)
	if err != nil || strings.Contains(out, "pleg") || strings.Count(out, "service: prober") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	got := refused(t, "status", "stats", "--runtime-dir="+dir)
	if !strings.Contains(got, "stats does not run on this node") {
		t.Error(got)
	}
}

func TestStatusWait(t *testing.T) {
	u := &fakeUp{processes: []*supervisorv1.Process{process("bus", supervisorv1.State_STATE_BACKOFF, 0, -1)}}
	dir := u.serve(t)
	_, err := execute(t, "status", "--wait", "--timeout=1ms", "--runtime-dir="+dir)
	var exit service.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || err.Error() != "not ready: bus" {
		t.Errorf("after the time: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := execute(t, "status", "bus", "--wait", "--runtime-dir="+dir)
		done <- err
	}()
	u.mu.Lock()
	u.processes[0] = process("bus", supervisorv1.State_STATE_READY, 8, time.Second)
	u.mu.Unlock()
	if err := <-done; err != nil {
		t.Errorf("when it is ready: %v", err)
	}
}

func TestStatusWide(t *testing.T) {
	bus := process("bus", supervisorv1.State_STATE_READY, 8, time.Second)
	bus.Arguments = []string{"bus", "--replica=0"}
	old := process("pleg", supervisorv1.State_STATE_READY, 8, -1)
	old.Version = ""
	dir := (&fakeUp{processes: []*supervisorv1.Process{bus, old}}).serve(t)
	out, err := execute(t, "status", "-o", "wide", "--runtime-dir="+dir)
	want := "\nSERVICE  VERSION  ARGUMENTS\nbus      v1.bus   bus --replica=0\npleg     -"
	if err != nil || !strings.Contains(out, want) {
		t.Errorf("%v\n%s", err, out)
	}
}

// synced is a buffer that is read while it is written.
type synced struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs a command line until the test cancels it.
func start(t *testing.T, args ...string) (out *synced, cancel func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out = &synced{}
	cmd := New()
	cmd.SetOut(out)
	cmd.SetErr(out)
	cmd.SetArgs(args)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	return out, func() error {
		stop()
		return <-done
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func TestStatusWatch(t *testing.T) {
	u := &fakeUp{processes: []*supervisorv1.Process{process("bus", supervisorv1.State_STATE_READY, 8, time.Second)}}
	out, cancel := start(t, "status", "--watch", "--runtime-dir="+u.serve(t))
	await(t, "a first look", func() bool { return strings.Contains(out.String(), "ready") })
	u.mu.Lock()
	u.processes[0] = process("bus", supervisorv1.State_STATE_BACKOFF, 0, time.Second)
	u.mu.Unlock()
	await(t, "a second look", func() bool { return strings.Contains(out.String(), "backoff") })
	if err := cancel(); err != nil || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v\n%q", err, out)
	}
	away, cancel := start(t, "status", "--watch", "--runtime-dir="+t.TempDir())
	await(t, "what is wrong", func() bool { return strings.Contains(away.String(), "not running") })
	if err := cancel(); err != nil {
		t.Error(err)
	}
}
