package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// Service is a service of the node before and while it runs. Its exported fields are set by New and
// not replaced.
type Service struct {
	Role    role.Role
	Config  Config
	Log     *slog.Logger
	Metrics *prometheus.Registry
	// Bus is the connection to the bus. Watches and writers are made before Run.
	Bus *bus.Client
	// GRPC is the server on sock/<service>/grpc.sock; register services, and Offer them, before Run.
	GRPC *grpc.Server
	// Health is served on it; Ready sets it.
	Health *health.Server
	// Pulse counts the rounds of the service's own main loop.
	Pulse *Pulse
	// Tracer records the spans of the service; nil where the node does not trace.
	Tracer *tracing.Tracer
	// Kept are the files that outlive a restart of this process.
	Kept *Kept

	policy   *unixgrpc.Policy
	notifier *run.Notifier
	// listeners are the sockets that the supervisor listens on for this process, by their paths. Taken ones are removed.
	listeners map[string]net.Listener
	unheard   atomic.Bool // the last notification failed
	notify    func(states ...string)
	watchdog  time.Duration // how long the supervisor waits for NotifyWatchdog; 0 when it does not
	started   time.Time

	mu      sync.Mutex
	group   *run.Group
	waiting []task
	ready   bool
	// open says that Run has opened the sockets; until then what Ready and Started report waits in held.
	open bool
	held []string
}

type task struct {
	name string
	f    func(context.Context) error
}

// New makes the service of a role. It opens nothing yet; what it finds wrong is in the config or in
// the service's nkey seed.
func New(cfg Config, r role.Role) (*Service, error) {
	if _, err := role.Get(r); err != nil {
		return nil, err
	}
	cfg.complete()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("config of %s: %w", r, err)
	}
	log, err := telemetry.ProcessLogger(cfg.Log, ProcessName(r, cfg.Replica))
	if err != nil {
		return nil, err
	}

	s := &Service{
		Role:    r,
		Config:  cfg,
		Log:     log,
		Metrics: telemetry.NewRegistry(string(r)),
		Health:  health.NewServer(),
		Pulse:   NewPulse(),
		policy: unixgrpc.NewPolicy(map[string][]role.Role{
			grpc_health_v1.Health_Check_FullMethodName: role.All(),
			grpc_health_v1.Health_List_FullMethodName:  role.All(),
			grpc_health_v1.Health_Watch_FullMethodName: role.All(),
		}),
		started: time.Now(),
	}
	options := bus.Options{
		Socket:   cfg.BusSocket(),
		Peers:    cfg.Peers(),
		SeedFile: bus.SeedFile(cfg.NKeys(), r),
		Role:     r,
		Replica:  cfg.Replica,
		Log:      log,
		Metrics:  s.Metrics,
	}
	if cfg.Placement.Has(role.Bus) {
		options.InProcess = cfg.Placement
	}
	if err = s.meetSupervisor(); err != nil {
		return nil, err
	}
	if err = s.trace(); err != nil {
		return nil, err
	}
	if s.Bus, err = bus.New(options); err != nil {
		return nil, fmt.Errorf("bus client of %s: %w", r, err)
	}
	s.GRPC = unixgrpc.NewServer(unixgrpc.ServerOptions{
		Policy:  s.policy,
		Log:     log,
		Metrics: s.Metrics,
		Peers:   cfg.Peers(),

		MaxRequest: maxRequests()[r],
	}, s.Tracer.ServerOptions()...)
	s.Health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s.GRPC, s.Health)
	s.registerMetrics()
	return s, nil
}

// maxRequests is how many bytes a request may have, for the services of which some need more than the default.
func maxRequests() map[role.Role]int {
	return map[role.Role]int{
		role.Podsync:    16 << 20, // RunPod and CheckPod bring a whole pod
		role.Resources:  16 << 20, // Allocate does
		role.NodeStatus: 1 << 20,  // the spans that a service sends at once
	}
}

// meetSupervisor finds who supervises the service: the process's own supervisor, or what holds several services in the
// process.
func (s *Service) meetSupervisor() (err error) {
	if in := s.Config.Placement; !s.ownsProcess() {
		s.notifier = in.Supervisor
		s.Kept = &Kept{service: s, inherited: maps.Clone(in.Inherited.Kept)}
		s.listeners = maps.Clone(in.Inherited.Listeners)
		in.Join(s.Role, s.Pulse)
		s.notify = func(states ...string) { in.notify(s.Role, states...) }
		return nil
	}
	if s.notifier, err = run.NewNotifier(); err != nil {
		return err
	}
	s.notify, s.watchdog = s.notifySupervisor, s.notifier.Watchdog()
	inherited, err := run.Inherited()
	s.Kept, s.listeners = &Kept{service: s, inherited: inherited.Kept}, inherited.Listeners
	return err
}

// Allow grants a method of GRPC to roles; no role may call a method that is not granted. Root's tools come as
// role.Up.
func (s *Service) Allow(fullMethod string, roles ...role.Role) { s.policy.Allow(fullMethod, roles...) }

// Offer grants all methods of a service of GRPC to roles. Health serves the name of the service, so that a client that
// also works with an older build can ask whether this one has the service.
func (s *Service) Offer(d *grpc.ServiceDesc, roles ...role.Role) {
	for _, m := range d.Methods {
		s.Allow("/"+d.ServiceName+"/"+m.MethodName, roles...)
	}
	for _, m := range d.Streams {
		s.Allow("/"+d.ServiceName+"/"+m.StreamName, roles...)
	}
	s.Health.SetServingStatus(d.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
}

// Go makes f part of the service: its end by an error or a panic ends the service, and Run waits for
// it. Before Run it waits for Run.
func (s *Service) Go(name string, f func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group == nil {
		s.waiting = append(s.waiting, task{name, f})
		return
	}
	s.group.Go(name, f)
}

// Started reports READY to the supervisor for a service with a running loop that waits for others before it does all of
// its work, such as a source of pods. The supervisor must not count that as a failed start. Its health stays
// NOT_SERVING until Ready. The status is for the operator. Before Run it waits for Run, as with Ready.
func (s *Service) Started(status string) { s.report(status) }

// Ready says that the service does its work: READY to the supervisor, SERVING to who asks for its
// health. The status is for the operator. Calling it again changes the status. Before Run, the supervisor hears of it
// only once Run has opened the sockets: who waits for READY may connect at once.
func (s *Service) Ready(status string) {
	s.mu.Lock()
	first := !s.ready
	s.ready = true
	s.mu.Unlock()
	status = strings.ReplaceAll(status, "\n", " ")
	if first {
		s.setServing(true)
		s.Log.Info("service is ready", "status", status, logkey.After, time.Since(s.started).Round(time.Millisecond))
	}
	s.report(status)
}

// report sends READY and the status to the supervisor, or keeps them until the sockets are open. It holds the lock, so
// that what was kept does not follow a newer status.
func (s *Service) report(status string) {
	states := []string{run.NotifyReady, run.NotifyStatus + status}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open {
		s.held = states
		return
	}
	s.notify(states...)
}

// reportHeld sends what was reported before the sockets were open.
func (s *Service) reportHeld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	if s.held != nil {
		s.notify(s.held...)
		s.held = nil
	}
}

// Waiting says what keeps the service from being ready; it is for the operator.
func (s *Service) Waiting(status string) {
	if !s.isReady() {
		s.notify(run.NotifyStatus + strings.ReplaceAll(status, "\n", " "))
	}
}

func (s *Service) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// ownsProcess reports whether the process's standard error, supervisor and end are this service's, and not those of
// what holds several services in the process.
func (s *Service) ownsProcess() bool { return s.Config.Placement == nil || s.Role == role.Up }

// notifySupervisor notifies the supervisor. A failure is logged once until a notification succeeds again.
func (s *Service) notifySupervisor(states ...string) {
	err := s.notifier.Notify(states...)
	if failed := err != nil; s.unheard.Swap(failed) != failed && failed {
		s.Log.Warn("notification of the supervisor failed", "states", states, logkey.Err, err)
	}
}

// Dial returns a connection to a role's API. It connects with the first call, and again whenever the
// other side comes back. The caller closes it.
func (s *Service) Dial(_ context.Context, to role.Role) (*grpc.ClientConn, error) {
	return s.dial(s.Config.Socket(to), to)
}

// NewWithCRI makes the service of a role as New does, and a connection to the role's share of the CRI, which the
// caller closes.
func NewWithCRI(cfg Config, r role.Role) (*Service, *grpc.ClientConn, error) {
	s, err := New(cfg, r)
	if err != nil {
		return nil, nil, err
	}
	conn, err := s.DialCRI()
	return s, conn, err
}

// DialCRI returns a connection to this role's share of the CRI, which podsync serves.
func (s *Service) DialCRI() (*grpc.ClientConn, error) {
	return s.dial(s.Config.CRISocket(s.Role), role.Podsync)
}

func (s *Service) dial(path string, to role.Role) (*grpc.ClientConn, error) {
	o := unixgrpc.DialOptions{Server: to, Self: s.Role, Peers: s.Config.Peers()}
	if s.Config.Placement.Has(to) {
		o.Network = &s.Config.Placement.network
	}
	return unixgrpc.Dial(path, o, s.Tracer.DialOptions()...)
}

// Listen opens a socket below the runtime folder for the node's group, makes its folders when they are absent, and
// listens inside a process with several services too. It takes over a socket that the supervisor has opened. It bounds
// the connections of each user. It is for servers beside GRPC, such as the CRI gateway's.
func (s *Service) Listen(path string) (net.Listener, error) {
	l, err := s.claim(path, func() (net.Listener, error) {
		if err := s.makeSocketDir(filepath.Dir(path)); err != nil {
			return nil, err
		}
		gid := role.GroupNode
		if os.Geteuid() != 0 && os.Getegid() != gid {
			gid = -1 // a developer's own process can give its socket to no group but its own
		}
		return unixgrpc.Listen(path, 0o660, gid)
	})()
	if err != nil || s.Config.Placement == nil {
		return l, err
	}
	in, err := s.Config.Placement.network.Listen(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return unixgrpc.Merge(l, in), nil
}

// Claim returns what opens a socket that others than the services connect to: the one that the supervisor has opened
// for this process, or a new one. After an error it may be tried again. It bounds the connections of each user. Claim
// is called before Run.
func (s *Service) Claim(socket Socket) (open func() (net.Listener, error)) {
	return s.claim(socket.Path, socket.Listen)
}

// claim returns what returns the listener that the supervisor has opened at a path, or opens one.
func (s *Service) claim(path string, open func() (net.Listener, error)) func() (net.Listener, error) {
	inherited := s.listeners[path]
	delete(s.listeners, path)
	return func() (net.Listener, error) {
		l := inherited
		if l == nil {
			var err error
			if l, err = open(); err != nil {
				return nil, err
			}
		}
		return unixgrpc.Bound(l, unixgrpc.BoundOptions{Peers: s.Config.Peers(), Log: s.Log, Metrics: s.Metrics}), nil
	}
}

// dropListeners closes the sockets that this process was given and does not serve. Those of a process with several
// services are other services' too.
func (s *Service) dropListeners() {
	if !s.ownsProcess() {
		return
	}
	for path, l := range s.listeners {
		s.Log.Warn("a socket that this process was given is none of its own; callers wait there for an answer that does "+
			"not come: correct the socket unit", logkey.Socket, path)
		_ = l.Close()
	}
	s.listeners = nil
}

// makeSocketDir makes a folder below the runtime folder, and those on the way to it. Only their owner may
// create sockets there; the node's group may reach them. "microlet up" does the same with the right
// owners; this is for a service that was started alone.
func (s *Service) makeSocketDir(dir string) error {
	below, err := filepath.Rel(s.Config.RuntimeDir, dir)
	if err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("folder of sockets: %s is not below the runtime folder %s", dir, s.Config.RuntimeDir)
	}
	path := s.Config.RuntimeDir
	for _, name := range strings.Split(below, string(filepath.Separator)) {
		path = filepath.Join(path, name)
		if err := makeOwnDir(path); err != nil {
			return fmt.Errorf("folder of sockets: %w", err)
		}
	}
	return nil
}

// makeOwnDir makes a folder of this process's own unless it is there.
func makeOwnDir(path string) error {
	if err := os.Mkdir(path, 0o750); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Lchown(path, 0, role.GroupNode); err != nil {
			return err
		}
	}
	return os.Chmod(path, 0o750) // Mkdir's mode is subject to the umask
}
