package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/component-helpers/node/util/sysctl"
	"sigs.k8s.io/yaml"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pidnamespace"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// Run runs the node agent until the context ends. What runs of the node's pods goes on running.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	turn, err := cfg.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, turn.release()) }()
	release, err := prepare(ctx, cfg.Service.RuntimeDir, cfg.Placement, cfg.onDemandRoles()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	copies, err := cfg.makeFiles()
	if err != nil {
		return err
	}
	if cfg.Placement == Single {
		cfg.Service.Placement = &service.InProcess{}
	}
	enterCgroup(cfg.Kubelet.Kubelet.KubeletCgroups, slog.Default(), pidnamespace.IsOwn) // peers go by the cgroup
	s, err := service.New(cfg.Service, role.Up)
	if err != nil {
		return err
	}
	if err := cfg.logConfiguration(s.Log); err != nil {
		return err
	}
	cfg.logGroups(s.Log)
	if err := cfg.tuneHost(s.Log); err != nil {
		return err
	}
	forbidCores(s.Log)
	setOwnLimits(&cfg.Kubelet.Kubelet, s.Log)
	limits := newLimits(&cfg, s.Log)
	defer limits.remove()
	services, err := cfg.agents(ctx, s, limits)
	if err != nil {
		return err
	}
	heartbeats := bus.Watch[busv1.Heartbeat](s.Bus, subject.Heartbeats, ">", nil)
	newServer(&cfg, services, heartbeats, keepLog(s)).serve(s)
	s.Go("services", services.Run)
	for _, c := range copies {
		s.Go(c.name(), func(ctx context.Context) error { return keep(ctx, c, s.Log) })
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	turn.watch(s, end)
	return s.Run(ctx)
}

// makeFiles makes what services find on the disk when they start. It returns what is copied again when it changes.
func (c *Config) makeFiles() ([]copied, error) {
	if err := errors.Join(c.makeStateFolders(), c.makeServiceFolders()); err != nil {
		return nil, err
	}
	return c.writeResolved()
}

// Prepare makes all that services need which something else starts, such as units or containers of their own, and ends:
// the runtime folder, keys, configuration, command lines, copies of credentials, state folders. What runs already goes
// on running. It refuses a runtime folder that "microlet up" supervises. The copies of credentials are as old as the
// last call.
func Prepare(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Placement != Processes || len(cfg.External) > 0 {
		return errors.New("prepare is for services that all are external, each with a process of its own: " +
			"leave --placement and --external to microlet up")
	}
	if path := cfg.Kubelet.Node.LockFile; path != "" {
		return fmt.Errorf("--lock-file=%s: services that all are external have no process that holds the lock as long as "+
			"they run: remove the flag, or use microlet up", path)
	}
	release, err := prepare(ctx, cfg.Service.RuntimeDir, cfg.Placement, cfg.onDemandRoles()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if _, err := cfg.makeFiles(); err != nil {
		return err
	}
	if err := cfg.writeArguments(); err != nil {
		return err
	}
	return cfg.tuneHost(slog.Default())
}

// logConfiguration writes what the kubelet's flags, file and drop-ins come to, without its secrets, under the message
// by which the kubelet's log has it.
func (c *Config) logConfiguration(log *slog.Logger) error {
	text, err := yaml.Marshal(c.Kubelet.Masked().Kubelet)
	if err != nil {
		return fmt.Errorf("log the configuration: %w", err)
	}
	log.Info("Effective KubeletConfiguration", "config", string(text))
	return nil
}

// tuneHost sets what the node agent and pods need of the kernel.
func (c *Config) tuneHost(log *slog.Logger) error {
	raiseInotify(inotifyInstances, log)
	return tuneKernel(sysctl.New(), c.Kubelet.Kubelet.ProtectKernelDefaults, log)
}

// groups are an identity's supplementary groups, with those of the host's that exist.
func groups(id role.Identity, log *slog.Logger) []int {
	all := slices.Clone(id.Groups)
	for _, name := range id.HostGroups {
		g, err := user.LookupGroup(name)
		if err != nil {
			log.Info("group does not exist on this host; files of it are not read", "group", name, logkey.Role, id.Role)
			continue
		}
		gid, err := strconv.Atoi(g.Gid)
		if err != nil || gid == 0 {
			continue // root's group is no log reader's
		}
		all = append(all, gid)
	}
	return all
}

// agents are the node's services while they run.
type agents interface {
	// Run runs them until the context ends.
	Run(ctx context.Context) error
	// Processes accounts for them, in start order.
	Processes() []supervisor.Process
	// Restart stops and starts one of them.
	Restart(name string) error
}

// agents makes the services ready to run, as the placement says.
func (c *Config) agents(ctx context.Context, s *service.Service, limits *limits) (agents, error) {
	if c.Placement == Single {
		return newSingle(c, s), nil
	}
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	programs := programs{own: own}
	if len(c.partition().Groups()) == 0 { // the pages of a second program are too much for few processes
		programs = findPrograms(ctx, own, s.Log)
	}
	o := supervisor.Options{
		NotifyDir: filepath.Join(c.Service.RuntimeDir, "notify"),
		Watchdog:  c.Watchdog,
		Output:    telemetry.ProcessWriter(),
		Format:    c.Service.Log.Format,
		Log:       s.Log,
		Metrics:   s.Metrics,
		OnTurn:    s.Pulse.Turn,
		OnReady:   s.Ready,
	}
	for _, u := range c.processes() {
		spec, err := c.spec(u, programs, limits, s.Log)
		if err != nil {
			return nil, err
		}
		o.Specs = append(o.Specs, spec)
	}
	return supervisor.New(o)
}
