package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
)

const (
	// CommandName is the command of a process that holds a group, before the group's name.
	CommandName = "group"
	// joint is between the names of the members.
	joint = "+"
	// turnPeriod is how often the process looks at its services where nothing supervises it.
	turnPeriod = 2 * time.Second
	// minFresh is the least age that a service's pulse may have. The period of the pulse is 2 s.
	minFresh = 3 * time.Second
	// flushTimeout bounds the wait for the log's reader at the end.
	flushTimeout = 500 * time.Millisecond
)

// Command returns the command "group NAME [flags]" of a program with these services, of which the name has some, such
// as "bus+nodestatus". It takes their own flags, and those that all services share. The kubelet's configuration of each
// is where "microlet up" has written it. The command is for "microlet up", and hidden.
func Command(name string, services []service.Definition) *cobra.Command {
	cfg := service.DefaultConfig()
	members, wrong := membersOf(name, services)
	cmd := &cobra.Command{
		Use:           CommandName + " NAME [flags]",
		Short:         "Run several services in one process, as microlet up does for a group of its --placement",
		Hidden:        true,
		Args:          service.OneArgument("the services, such as bus+nodestatus"),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(service.ExplainFlag)
	fs := cmd.Flags()
	cfg.AddFlags(fs)
	for _, d := range members {
		if d.Bind != nil {
			own := pflag.NewFlagSet(string(d.Role), pflag.ContinueOnError)
			d.Bind(own)
			fs.AddFlagSet(own)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if wrong != nil {
			return wrong
		}
		if err := service.KeepPrivate(); err != nil {
			return err
		}
		service.TuneProcess(rolesOf(members)...)
		service.LimitHeap(members...)
		if err := cfg.Validate(); err != nil {
			return err
		}
		return service.Afterwards(cmd.Context(), func(ctx context.Context) error {
			return runProcess(run.Signals(ctx), args[0], cfg, members)
		})
	}
	return cmd
}

// NameOf is the name of the group that a command line's arguments call; empty if they call another command.
func NameOf(args []string) (name string, called bool) {
	if len(args) == 0 || args[0] != CommandName {
		return "", false
	}
	if len(args) > 1 {
		name = args[1]
	}
	return name, true
}

// membersOf are the services that a name has, in start order.
func membersOf(name string, services []service.Definition) ([]service.Definition, error) {
	var members []service.Definition
	names := strings.Split(name, joint)
	for _, d := range services {
		if i := slices.Index(names, string(d.Role)); i >= 0 {
			members = append(members, d)
			names = slices.Delete(names, i, i+1)
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("group is %q: %q is none of this program's services, or is named twice", name, names[0])
	}
	return members, nil
}

func rolesOf(members []service.Definition) []role.Role {
	roles := make([]role.Role, 0, len(members))
	for _, d := range members {
		roles = append(roles, d.Role)
	}
	return roles
}

// ResolvedFile is where a service's part of the kubelet's configuration is, as "microlet up" resolved it.
func ResolvedFile(runtimeDir string, r role.Role) string {
	return filepath.Join(runtimeDir, "config", string(r)+".yaml")
}

// runProcess runs the services until the context ends.
func runProcess(ctx context.Context, name string, cfg service.Config, definitions []service.Definition) error {
	log, err := telemetry.ProcessLogger(cfg.Log, name)
	if err != nil {
		return err
	}
	defer func() { telemetry.ProcessWriter().Flush(flushTimeout) }()
	notifier, err := run.NewNotifier()
	if err != nil {
		return err
	}
	inherited, err := run.Inherited()
	if err != nil {
		return err
	}
	network := &service.InProcess{Roles: rolesOf(definitions), Supervisor: notifier, Inherited: inherited}
	p := &process{log: log, notify: notifier.Notify, watchdog: notifier.Watchdog()}
	members := make([]Member, 0, len(definitions))
	for _, d := range definitions {
		m, err := configure(d, cfg)
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	p.group = New(network, members, p.tell)
	return p.run(ctx)
}

// configure reads what a service needs of the kubelet's configuration.
func configure(d service.Definition, cfg service.Config) (Member, error) {
	m := Member{Definition: d, Config: cfg}
	if !d.NeedsKubelet {
		return m, nil
	}
	var err error
	if m.Kubelet, err = kubeletconfig.ReadResolved(ResolvedFile(cfg.RuntimeDir, d.Role)); err != nil {
		return m, fmt.Errorf("configuration of %s: %w", d.Role, err)
	}
	if m.Kubelet.Kubelet.EnableContentionProfiling {
		runtime.SetBlockProfileRate(1)
	}
	return m, m.Config.TakeKubelet(m.Kubelet)
}

// process reports to the supervisor what the services of this process say.
type process struct {
	group    *Group
	log      *slog.Logger
	notify   func(states ...string) error
	watchdog time.Duration // how long the supervisor waits for a sign of life; 0 is for ever

	ready   atomic.Bool // the supervisor has heard it
	unheard atomic.Bool // the last notification failed
}

// serviceKey is supervisor.ServiceKey. The package of the supervisor is too much for this process.
const serviceKey = "X_MICROLET_SERVICE"

// tell passes on what a service says, and that the process is ready once all services are.
func (p *process) tell(r role.Role, states ...string) {
	p.send(append([]string{serviceKey + "=" + string(r)}, states...)...)
	p.tellReady()
}

// tellReady says that the process is ready, if all services are. It is to be called until the supervisor has heard it.
func (p *process) tellReady() {
	if !p.ready.Load() && len(p.group.NotReady()) == 0 && p.send(run.NotifyReady) {
		p.ready.Store(true)
	}
}

// send notifies the supervisor, and reports whether that succeeded. A failure is logged once until a notification
// succeeds again.
func (p *process) send(states ...string) bool {
	err := p.notify(states...)
	if failed := err != nil; p.unheard.Swap(failed) != failed && failed {
		p.log.Warn("notification of the supervisor failed", "states", states, logkey.Err, err)
	}
	return err == nil
}

// run runs the group until the context ends.
func (p *process) run(ctx context.Context) error {
	all, ctx := run.New(ctx)
	all.Go("services", func(ctx context.Context) error {
		err := p.group.Run(ctx)
		if err == nil && ctx.Err() == nil {
			return errors.New("all services ended by themselves")
		}
		return err
	})
	all.Go("watchdog", p.feed)
	<-ctx.Done()
	p.send(run.NotifyStopping)
	return all.Wait()
}

// feed reports that the process lives as long as the loop of each service turns. So the supervisor ends a process with
// one that hangs, as it ends a service that hangs.
func (p *process) feed(ctx context.Context) error {
	period := turnPeriod
	if p.watchdog != 0 {
		period = p.watchdog / 4
	}
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		p.tellReady()
		if hung := p.group.Hung(max(period, minFresh)); hung != nil {
			p.log.Error("main loop stands still; the watchdog is not fed", logkey.Reason, hung)
		} else if p.watchdog != 0 {
			p.send(run.NotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
