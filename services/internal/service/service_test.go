package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/testing/sockethttp"
)

// newTestService returns a service of a runtime folder of its own, with the keys that it needs. The
// bus it names does not exist: no service waits for it.
func newTestService(t *testing.T, r role.Role, placement *InProcess) *Service {
	t.Helper()
	cfg := DefaultConfig()
	cfg.RuntimeDir = proctest.TempDir(t, 0o755)
	cfg.Placement = placement
	return newIn(t, cfg, r)
}

func newIn(t *testing.T, cfg Config, r role.Role) *Service {
	t.Helper()
	id := role.Identity{Role: r, UID: os.Getuid(), GID: os.Getgid()}
	if err := bus.GenerateNKeys(cfg.NKeys(), []role.Identity{id}); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the service and returns what stops it.
func start(t *testing.T, s *Service) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return stop
}

func TestLifeOfAService(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: the caller's role is podsync's")
	}
	s := newTestService(t, role.Podsync, nil)
	notified := make(chan []string, 16)
	s.notify = func(states ...string) { notified <- states }
	s.Go("loop", func(ctx context.Context) error { <-ctx.Done(); return nil })
	stop := start(t, s)

	conn, err := s.Dial(t.Context(), role.Podsync)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func() grpc_health_v1.HealthCheckResponse_ServingStatus {
		t.Helper()
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	if got := check(); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health before Ready is %v", got)
	}
	// A service that waits for others is alive, so the supervisor must not restart it.
	if code, _ := get(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz before Ready is %d", code)
	}
	s.Waiting("for\nothers")
	if got, want := <-notified, []string{"STATUS=for others"}; !slices.Equal(got, want) {
		t.Errorf("notified %q, want %q", got, want)
	}
	s.Started("without them")
	if got, want := <-notified, []string{run.NotifyReady, "STATUS=without them"}; !slices.Equal(got, want) {
		t.Errorf("notified %q, want %q", got, want)
	}
	if got := check(); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health before Ready is %v", got)
	}
	s.Ready("two\nlines")
	if got, want := <-notified, []string{run.NotifyReady, "STATUS=two lines"}; !slices.Equal(got, want) {
		t.Errorf("notified %q, want %q", got, want)
	}
	if got := check(); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health after Ready is %v", got)
	}
	s.Waiting("for nothing any more")
	if code, _ := get(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz after Ready is %d", code)
	}
	s.Pulse.Turn()
	if _, body := get(t, s, "/metrics"); !strings.Contains(body, "microlet_pulse_turns_total 1") {
		t.Error("/metrics lacks the pulse")
	}
	if err := stop(); err != nil {
		t.Errorf("Run is %v", err)
	}
	if got := <-notified; !slices.Equal(got, []string{run.NotifyStopping}) {
		t.Errorf("notified %q at the stop", got)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Config.RuntimeDir, "sock", "*", "*.sock")); len(left) != 0 {
		t.Errorf("sockets are left: %v", left)
	}
}

// A service that reports that it is ready before Run has its sockets open when the supervisor hears of it: what waits
// for READY, such as microlet debug bundle after microlet status --wait, looks for them at once.
func TestReadyAfterTheSocketsAreOpen(t *testing.T) {
	for name, report := range map[string]func(*Service){
		"Ready":   func(s *Service) { s.Ready("serving") },
		"Started": func(s *Service) { s.Started("serving") },
	} {
		s := newTestService(t, role.Podsync, nil)
		open := make(chan error, 1)
		s.notify = func(states ...string) {
			if slices.Equal(states, []string{run.NotifyReady, "STATUS=serving"}) {
				_, grpcSocket := os.Stat(s.Config.Socket(s.Role))
				_, metricsSocket := os.Stat(s.Config.MetricsSocket(s.Role))
				open <- errors.Join(grpcSocket, metricsSocket)
			}
		}
		report(s)
		stop := start(t, s)
		if err := <-open; err != nil {
			t.Errorf("%s: the supervisor hears of it and there is no socket: %v", name, err)
		}
		if err := stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func get(t *testing.T, s *Service, path string) (int, string) {
	t.Helper()
	return sockethttp.Get(t, s.Config.MetricsSocket(s.Role), path)
}

func TestFailingPartEndsTheService(t *testing.T) {
	s := newTestService(t, role.Podsync, nil)
	broken := errors.New("broken")
	s.Go("part", func(context.Context) error { return broken })
	err := s.Run(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "part: broken") {
		t.Errorf("Run is %v, want the part's name and error", err)
	}
}

func TestStopIsBounded(t *testing.T) {
	s := newTestService(t, role.Podsync, nil)
	s.Config.StopTimeout = 20 * time.Millisecond
	release := make(chan struct{})
	defer close(release)
	s.Go("stubborn", func(context.Context) error { <-release; return nil })
	err := start(t, s)()
	if err == nil || !strings.Contains(err.Error(), "stubborn") {
		t.Errorf("Run is %v, want one that names the part that did not end", err)
	}
}

func TestOneSocketOneService(t *testing.T) {
	s := newTestService(t, role.Podsync, nil)
	l, err := s.Listen(s.Config.Socket(role.Podsync))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := s.Run(t.Context()); err == nil {
		t.Error("a second server took the socket")
	}
}

func TestWatchdogIsFedOnlyWhileThePulseTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		fed := 0
		s := &Service{
			Role: role.PLEG, Log: slog.New(slog.DiscardHandler), Pulse: NewPulse(), watchdog: 10 * time.Second,
			notify: func(states ...string) {
				if slices.Equal(states, []string{run.NotifyWatchdog}) {
					fed++
				}
			},
		}
		done := make(chan error, 1)
		go func() { done <- s.feedWatchdog(ctx) }()

		longest, before := 0, 0
		for range 30 { // a minute of an idle loop
			s.Pulse.Turn()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if fed == before {
				longest++
			}
			before = fed
		}
		if fed < 20 || longest > 10 {
			t.Errorf("fed %d times in a minute, %d spells of 2 s without", fed, longest)
		}
		s.Pulse.Turn() // the last one
		time.Sleep(4 * time.Second)
		synctest.Wait()
		before = fed
		time.Sleep(time.Hour)
		synctest.Wait()
		if fed != before {
			t.Errorf("fed %d times while the loop stood still", fed-before)
		}
		s.Pulse.Turn()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if fed == before {
			t.Error("not fed again when the loop went on")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestHealthFollowsThePulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &Service{
			Role:   role.PLEG,
			Log:    slog.New(slog.DiscardHandler),
			Pulse:  NewPulse(),
			Health: health.NewServer(),
			ready:  true,
		}
		done := make(chan error, 1)
		go func() { done <- s.watchHealth(ctx) }()
		for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
			grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
			grpc_health_v1.HealthCheckResponse_SERVING,
		} {
			if want == grpc_health_v1.HealthCheckResponse_NOT_SERVING {
				time.Sleep(hungAfter)
			}
			if want == grpc_health_v1.HealthCheckResponse_SERVING {
				s.Pulse.Turn()
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			resp, err := s.Health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "microlet.pleg"})
			if err != nil || resp.GetStatus() != want {
				t.Errorf("health is %v, %v, want %v", resp.GetStatus(), err, want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// In the single placement a service reaches another inside the process, and its role goes with it.
func TestSinglePlacement(t *testing.T) {
	placement := &InProcess{}
	var mu sync.Mutex
	reported := map[role.Role][]string{}
	placement.Notify = func(r role.Role, states ...string) {
		mu.Lock()
		defer mu.Unlock()
		reported[r] = append(reported[r], states...)
	}
	podsync := newTestService(t, role.Podsync, placement)
	pleg := newIn(t, podsync.Config, role.PLEG)
	for r, name := range map[role.Role]string{role.PLEG: "for.PLEG", role.Prober: "for.Prober"} {
		podsync.Offer(&grpc.ServiceDesc{
			ServiceName: name,
			Methods:     []grpc.MethodDesc{{MethodName: "Get"}}, Streams: []grpc.StreamDesc{{StreamName: "Watch"}},
		}, r)
	}
	start(t, podsync)
	podsync.Ready("here")

	conn, err := pleg.Dial(t.Context(), role.Podsync)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true)); err != nil {
		t.Errorf("pleg asks podsync: %v", err)
	}
	err = conn.Invoke(t.Context(), "/microlet.podsync.v1.PodsyncService/Unlisted", &grpc_health_v1.HealthCheckRequest{},
		&grpc_health_v1.HealthCheckResponse{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method that was granted to no role: %v", err)
	}
	checkOffered(t, conn)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(reported[role.Podsync], run.NotifyReady) {
		t.Errorf("reported %v, want podsync's READY", reported)
	}
	idle := placement.Idle()
	if _, ok := idle[role.PLEG]; !ok || len(idle) != 2 {
		t.Errorf("idle is %v, want both services", idle)
	}
	if _, err := placement.InProcessConn(); err == nil {
		t.Error("connected to a bus that is not there")
	}
}

// checkOffered checks what podsync offers to pleg. No service is registered, so the methods do not exist.
func checkOffered(t *testing.T, pleg *grpc.ClientConn) {
	t.Helper()
	for service, want := range map[string]codes.Code{
		"for.PLEG": codes.Unimplemented, "for.Prober": codes.PermissionDenied, "for.Nothing": codes.PermissionDenied,
	} {
		for _, method := range []string{"Get", "Watch"} {
			err := pleg.Invoke(t.Context(), "/"+service+"/"+method, &grpc_health_v1.HealthCheckRequest{},
				&grpc_health_v1.HealthCheckResponse{})
			if status.Code(err) != want {
				t.Errorf("%s of %s: %v, want %v", method, service, err, want)
			}
		}
		_, err := grpc_health_v1.NewHealthClient(pleg).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{Service: service})
		if (status.Code(err) == codes.NotFound) != (service == "for.Nothing") {
			t.Errorf("the health of %s: %v", service, err)
		}
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	cfg := DefaultConfig()
	fs := pflag.NewFlagSet("service", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	args := []string{"--runtime-dir=run", "--replica=a.b", "--logging-format=xml"}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("the config passed")
	}
	for _, want := range []string{`runtime-dir is "run": give an absolute path`, `replica: "a.b"`,
		`logging-format is "xml"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}

func TestTheNameOfTheNodeIsNeeded(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Errorf("a service that needs no Node: %v", err)
	}
	if err := cfg.ValidateOnNode(); err == nil || !strings.Contains(err.Error(), "node-name is empty") {
		t.Errorf("a service that needs one: %v", err)
	}
	cfg.NodeName = "node-1"
	if err := cfg.ValidateOnNode(); err != nil {
		t.Errorf("with a name: %v", err)
	}
	cfg.RuntimeDir = "run"
	if err := cfg.ValidateOnNode(); err == nil || !strings.Contains(err.Error(), "runtime-dir") {
		t.Errorf("what else is wrong is not said: %v", err)
	}
}

func TestCommandPrintsHelpAndRefuses(t *testing.T) {
	cmd := Definition{Role: role.PLEG, Short: "turn"}.Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"--help"})
	if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "--runtime-dir") {
		t.Errorf("--help is %v: %s", err, &out)
	}
	for _, args := range [][]string{{"--no-such"}, {"word"}, {"--replica=*"}} {
		cmd := Definition{Role: role.PLEG, Short: "turn"}.Command()
		cmd.SetOut(io.Discard)
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

// TestSocketsOfOneServiceAreItsOwn: no folder of sockets is one that another service could create anything in.
func TestSocketsOfOneServiceAreItsOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: folders of sockets belong to the node's group")
	}
	s := newTestService(t, role.PLEG, nil)
	other := Config{RuntimeDir: s.Config.RuntimeDir}
	seen := map[string]role.Role{}
	for _, r := range role.All() {
		for _, path := range []string{other.Socket(r), other.MetricsSocket(r),
			ReplicaSocket(other.MetricsSocket(r), "1")} {
			l, err := s.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for dir := filepath.Dir(path); dir != s.Config.RuntimeDir; dir = filepath.Dir(dir) {
				info, err := os.Stat(dir)
				if err != nil {
					t.Fatal(err)
				}
				if mode := info.Mode(); mode != fs.ModeDir|0o750 {
					t.Errorf("%s, on the way to a socket of %s, is %v: others could take its sockets' names", dir, r,
						mode)
				}
			}
			if first, ok := seen[filepath.Dir(path)]; ok && first != r {
				t.Errorf("%s and %s share a folder", first, r)
			}
			seen[filepath.Dir(path)] = r
		}
	}
}

func TestReplicas(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "prober.sock")
	for _, replica := range []string{"1", "0", "11"} {
		if err := os.WriteFile(ReplicaSocket(path, replica), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"prober", "prober.1", "prober.a b.sock", "probers.sock", "nodeapi.1.sock"} {
		if err := os.WriteFile(filepath.Join(dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Replicas(path); err != nil || !slices.Equal(got, []string{"0", "1", "11"}) {
		t.Errorf("found %q, %v", got, err)
	}
	for i := range 40 {
		if err := os.WriteFile(ReplicaSocket(path, strconv.Itoa(100+i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Replicas(path); err == nil || len(got) != MaxReplicas || got[0] != "0" {
		t.Errorf("of more than can be there are %q, %v", got, err)
	}
	if got, err := Replicas(filepath.Join(dir, "none", "prober.sock")); err != nil || len(got) != 0 {
		t.Errorf("a folder that is not there has %q, %v", got, err)
	}
}
