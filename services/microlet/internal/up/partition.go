package up

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/group"
	"github.com/microlet/microlet/services/microlet/internal/placement"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// parsePlacement reads a placement of the services that a node has.
func parsePlacement(text string) (placement.Partition, error) {
	return placement.Parse(text, slices.DeleteFunc(role.All(), func(r role.Role) bool { return r == role.Up }))
}

// partition is the placement. Validate refuses one that cannot be read, so that an error cannot be here.
func (c *Config) partition() placement.Partition {
	p, _ := parsePlacement(c.Placement)
	return p
}

// identity is what the process of a service runs as.
func (c *Config) identity(r role.Role) (role.Identity, error) { return c.partition().Identity(r) }

// InProcess are the services that this process itself holds, and its own role.
func (c *Config) InProcess() []role.Role {
	own := []role.Role{role.Up}
	if c.Placement == placement.Single {
		for _, s := range c.Services {
			own = append(own, s.Role)
		}
	}
	return own
}

// validatePlacement says what is wrong with Placement, by itself and with the flags that are about one service.
func (c *Config) validatePlacement() error {
	p, err := parsePlacement(c.Placement)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range p.Groups() {
		if c.ProberReplicas > 1 && g.Has(role.Prober) {
			errs = append(errs, fmt.Errorf("prober-replicas is %d: by --placement=%s, prober is one of the services of the "+
				"process %s; use --placement=%s for more, or a placement that does not name prober", c.ProberReplicas,
				c.Placement, g.Name(), Processes))
		}
		if g.RootAtTheEdge() && !p.Single && !c.PlacementForce {
			errs = append(errs, fmt.Errorf("placement is %q: in the process %s, who takes over nodeapi from the network is "+
				"root; leave nodeapi to a process of its own, or give --placement-force", c.Placement, g.Name()))
		}
		for _, name := range c.External {
			if g.Has(role.Role(name)) && !p.Single {
				errs = append(errs, fmt.Errorf("external has %q: by --placement=%s, it is one of the services of the process "+
					"%s; leave it out of the placement's groups, or of --external", name, c.Placement, g.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// writePlacement writes down which users have the roles of which services, for all processes. The file is root's. It is
// removed where each user has the role of its service, as with processes that units start.
func writePlacement(runtimeDir string, p placement.Partition) error {
	cfg := service.Config{RuntimeDir: runtimeDir}
	table := p.Roles()
	if table == nil {
		if err := os.RemoveAll(cfg.PlacementFile()); err != nil {
			return fmt.Errorf("placement: %w", err)
		}
		return nil
	}
	data, err := table.Encode()
	if err != nil {
		return fmt.Errorf("placement: %w", err)
	}
	return writeFile(cfg.PlacementFile(), data, 0o640, 0, role.GroupNode)
}

// process is one that the supervisor runs: a replica of a service, or a group of services.
type process struct {
	services []service.Definition
	replica  int
}

// processes are those of the services that are started here, in the order of their first services.
func (c *Config) processes() []process {
	p := c.partition()
	var all []process
	for i, s := range c.Services {
		if !c.supervised(s) {
			continue
		}
		g := p.Of(s.Role)
		if len(g) == 1 {
			for replica := range c.replicas(s) {
				all = append(all, process{[]service.Definition{s}, replica})
			}
			continue
		}
		isMember := func(s service.Definition) bool { return g.Has(s.Role) }
		if !slices.ContainsFunc(c.Services[:i], isMember) {
			members := slices.DeleteFunc(slices.Clone(c.Services), func(s service.Definition) bool { return !isMember(s) })
			all = append(all, process{services: members})
		}
	}
	return all
}

// roles are those of its services.
func (u process) roles() placement.Group {
	var g placement.Group
	for _, s := range u.services {
		g = append(g, s.Role)
	}
	return g
}

// name is the name of the process.
func (u process) name() string {
	if len(u.services) == 1 {
		return processName(u.services[0], u.replica)
	}
	return u.roles().Name()
}

// names are those of its services, if they are several.
func (u process) names() []string {
	if len(u.services) == 1 {
		return nil
	}
	return u.roles().Names()
}

// memory is what the services may take together; 0 if one has no limit.
func (u process) memory() (total int64) {
	for _, s := range u.services {
		own := s.Memory()
		if own == 0 {
			return 0
		}
		total += own
	}
	return total
}

// each returns what of gives for each service of the process.
func each[E any](u process, of func(service.Definition) E) []E {
	all := make([]E, 0, len(u.services))
	for _, s := range u.services {
		all = append(all, of(s))
	}
	return all
}

// common are the elements that all lists have.
func common(lists [][]string) []string {
	return slices.DeleteFunc(slices.Clone(lists[0]), func(e string) bool {
		return slices.ContainsFunc(lists[1:], func(list []string) bool { return !slices.Contains(list, e) })
	})
}

// groupArguments are the command line of a process with several services.
func (c *Config) groupArguments(u process, root bool) []string {
	args := []string{
		group.CommandName, u.name(), "--runtime-dir=" + c.Service.RuntimeDir, "--node-name=" + c.Service.NodeName,
	}
	args = append(append(args, c.peerArguments()...), c.Service.Log.Flags()...)
	for _, s := range u.services {
		args = append(args, c.ownArguments(s, root)...)
	}
	return args
}

// groups describes the processes with several services.
func (c *Config) groups() []*supervisorv1.Group {
	p := c.partition()
	var all []*supervisorv1.Group
	for _, g := range p.Groups() {
		id, err := g.Identity()
		if err != nil {
			continue // Validate has refused it
		}
		out := &supervisorv1.Group{Name: g.Name(), Privileges: g.Privileges(id)}
		if p.Single {
			out.Name = placement.Single
		}
		if g.RootAtTheEdge() {
			out.Warning = "who takes over nodeapi from the network is root"
		}
		all = append(all, out)
	}
	return all
}

// PlacementWarnings say what is unsafe about the placement, for operators who check it before the start.
func (c *Config) PlacementWarnings() []string {
	var all []string
	for _, g := range c.groups() {
		if g.GetWarning() != "" {
			all = append(all, fmt.Sprintf("in the process %s, %s", g.GetName(), g.GetWarning()))
		}
	}
	return all
}

// logGroups says which privileges services have beside their own.
func (c *Config) logGroups(log *slog.Logger) {
	for _, g := range c.groups() {
		log.Info("services share a process, and each has the privileges of all", "process", g.GetName(), "privileges",
			g.GetPrivileges())
		if w := g.GetWarning(); w != "" {
			log.Warn("a process that the network reaches is root", "process", g.GetName(), logkey.Reason, w)
		}
	}
}

// spec is how the supervisor runs a process.
func (c *Config) spec(u process, programs programs, limits *limits, log *slog.Logger) (supervisor.Spec, error) {
	id, err := u.roles().Identity()
	if err != nil {
		return supervisor.Spec{}, err
	}
	path, fallback := programs.of(u.services[0].Role)
	spec := supervisor.Spec{
		Name: u.name(), Services: u.names(), Path: path, Fallback: fallback,
		Env: environment(os.Environ(), id),
		UID: id.UID, GID: id.GID, Groups: groups(id, log), Capabilities: id.Capabilities,
		// Root's helpers (mount, iptables) may depend on transitions that this would forbid.
		NoNewPrivileges: id.UID != 0,
		// What others can make large, or have give way, spares the rest of its process with itself.
		Nice:           slices.Min(each(u, func(s service.Definition) int { return s.Nice })),
		OOMScoreAdj:    slices.Min(each(u, func(s service.Definition) int { return s.OOMScoreAdj })),
		Hidden:         common(each(u, func(s service.Definition) []string { return c.hidden(s, path, fallback) })),
		PrivateNetwork: !slices.Contains(each(u, hasPrivateNetwork), false),
		StopStage:      slices.Max(each(u, func(s service.Definition) int { return s.StopStage })),
		Cgroup:         limits.of(u),
		Release:        func() error { return c.release(u) },
		OnDemand:       c.onDemand(u, id),
	}
	for _, s := range u.services {
		spec.Writable = append(spec.Writable, c.writable(s, id)...)
		spec.KeptFiles += s.KeptFiles
		spec.Exclusive = cmp.Or(spec.Exclusive, c.exclusive(s.Role))
	}
	if spec.Args = c.arguments(u.services[0], u.replica); len(u.services) > 1 {
		spec.Args = c.groupArguments(u, id.UID == 0)
	}
	return spec, nil
}

func hasPrivateNetwork(s service.Definition) bool {
	return s.PrivateNetwork != nil && s.PrivateNetwork()
}
