package up

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
	"github.com/microlet/microlet/services/microlet/internal/group"
	"github.com/microlet/microlet/services/microlet/internal/placement"
)

// The placements.
const (
	// Processes gives each service a process and an identity of its own.
	Processes = placement.Processes
	// Single puts all services into one process, for a small node.
	Single = placement.Single
)

const (
	// defaultWatchdog is far above the 2 s of a round of every service's loop, and low enough that a hung service is back
	// within 15 s.
	defaultWatchdog = 10 * time.Second
	// minWatchdog leaves a loop with a round every 2 s room for a slow processor.
	minWatchdog = 5 * time.Second
	// stopTimeout is above what the supervisor takes to stop all.
	stopTimeout = 14 * time.Second
)

// Config configures "microlet up".
type Config struct {
	// Service configures every service, and up itself.
	Service service.Config
	// Kubelet is the resolved configuration of the kubelet that microlet stands in for.
	Kubelet *kubeletconfig.Config
	// Placement says which services share a process, as package placement reads it. Default: processes.
	Placement string
	// PlacementForce allows a group in which nodeapi, which the network reaches, shares root's rights. The single
	// placement does not need it. Default: false.
	PlacementForce bool
	// Watchdog is how long a service may stand still before it is killed and started again; 0 never.
	// Default: 10 s.
	Watchdog time.Duration
	// ProberReplicas is how many probers share the pods. Default: 1. A prober that shares a process has none beside it.
	ProberReplicas int
	// Services are all of the node, in start order.
	Services []service.Definition
	// External names services that something else starts, such as a unit or a pod of their own. They find what
	// they need in the runtime folder. At least one service remains. Default: none.
	External []string

	// own are each service's own flags, to be handed on.
	own map[string]*pflag.FlagSet
}

// DefaultConfig returns the defaults, with all services of the binary.
func DefaultConfig() Config {
	s := service.DefaultConfig()
	s.StopTimeout = stopTimeout
	return Config{
		Service:        s,
		Placement:      Processes,
		Watchdog:       defaultWatchdog,
		ProberReplicas: 1,
		Services:       catalog.Services(),
	}
}

// AddFlags adds up's own flags and those of its services.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	c.Service.AddFlags(fs)
	fs.StringVar(&c.Placement, "placement", c.Placement,
		`which services share a process: "processes": none, each with its own identity; "compact": those with much the `+
			`same privileges, as `+placement.CompactGroups+`; "single": all, for a small node; or groups such as `+
			`bus+nodestatus,pleg+stats, where the others have a process each`)
	fs.BoolVar(&c.PlacementForce, "placement-force", c.PlacementForce,
		"allow groups of --placement in which nodeapi, which the network reaches, shares the rights of root")
	fs.Var((*offDuration)(&c.Watchdog), "watchdog",
		`how long a service may stand still before it is started again; "0" or "off" is for ever`)
	fs.IntVar(&c.ProberReplicas, "prober-replicas", c.ProberReplicas, "how many probers share the pods among them")
	fs.StringSliceVar(&c.External, "external", c.External, "services that something else starts, such as prober,nodeapi: "+
		"their folders, keys and configuration are made, and status shows their heartbeats")
	c.own = map[string]*pflag.FlagSet{}
	for _, s := range c.Services {
		if s.Bind == nil {
			continue
		}
		own := pflag.NewFlagSet(string(s.Role), pflag.ContinueOnError)
		s.Bind(own)
		c.own[string(s.Role)] = own
		own.VisitAll(func(f *pflag.Flag) {
			if fs.Lookup(f.Name) == nil {
				fs.AddFlag(f) // the same flag in both sets, so that each knows what the other was given
			}
		})
	}
}

// OfService reports whether AddFlags has added the flag for a service, rather than for up itself.
func (c *Config) OfService(flag string) bool {
	for _, own := range c.own {
		if own.Lookup(flag) != nil {
			return true
		}
	}
	return false
}

// Validate says what is wrong with the config and with those of all services: field, value, remedy.
func (c *Config) Validate() error {
	errs := []error{c.Service.Validate()}
	errs = append(errs, c.validatePlacement())
	if c.Watchdog != 0 && c.Watchdog < minWatchdog {
		errs = append(errs, fmt.Errorf("watchdog is %v: use %v or more, or 0 for none", c.Watchdog, minWatchdog))
	}
	if c.ProberReplicas < 1 || c.ProberReplicas > service.MaxReplicas {
		errs = append(errs, fmt.Errorf("prober-replicas is %d: give 1 to %d", c.ProberReplicas, service.MaxReplicas))
	}
	errs = append(errs, c.validateExternal())
	if c.Kubelet == nil {
		errs = append(errs, errors.New("there is no kubelet configuration: give the kubelet's flags"))
		return errors.Join(errs...)
	}
	errs = append(errs, c.validateNodeName(), c.validateServing())
	for _, s := range c.Services {
		errs = append(errs, s.Validate(c.Service, c.Kubelet))
	}
	return distinct(errors.Join(errs...))
}

// validateNodeName holds --node-name to what the kubelet's configuration says of the name.
func (c *Config) validateNodeName() error {
	const flag = "--node-name"
	name := c.Service.NodeName
	kubelets, err := c.Kubelet.NodeName()
	if name == kubelets || name == "" {
		return nil // what is wrong with it is reported
	}
	if err == nil && c.Kubelet.Node.HostnameOverride != "" {
		return kubeletconfig.Problem{
			Field: flag, Value: name, Detail: "--hostname-override names the node " + kubelets, Remedy: "give one of them",
		}
	}
	if why := utilvalidation.IsDNS1123Subdomain(name); len(why) > 0 {
		return kubeletconfig.Problem{
			Field: flag, Value: name, Detail: strings.Join(why, "; "), Remedy: "write a DNS name",
		}
	}
	return nil
}

// distinct joins the errors in err, each once: services have settings in common.
func distinct(err error) error {
	var all []error
	seen := map[string]bool{}
	for _, e := range kubeletconfig.Flatten(err) {
		if !seen[e.Error()] {
			seen[e.Error()] = true
			all = append(all, e)
		}
	}
	return errors.Join(all...)
}

// replicas is how many processes a service has.
func (c *Config) replicas(s service.Definition) int {
	if s.Role == role.Prober {
		return c.ProberReplicas
	}
	return 1
}

// processName is the name of a service's process. A replica's number is the same after a restart.
func processName(s service.Definition, replica int) string {
	return service.ProcessName(s.Role, strconv.Itoa(replica))
}

// arguments are the command line of a service's process.
func (c *Config) arguments(s service.Definition, replica int) []string {
	args := []string{
		string(s.Role),
		"--runtime-dir=" + c.Service.RuntimeDir,
		"--node-name=" + c.Service.NodeName,
		"--replica=" + strconv.Itoa(replica),
	}
	args = append(args, c.peerArguments()...)
	if s.NeedsKubelet {
		args = append(args, "--resolved-config="+c.resolvedPath(s))
	} else {
		args = append(args, c.Service.Log.Flags()...)
	}
	return append(args, c.ownArguments(s, false)...)
}

// peerArguments name the cgroups of services that something else starts.
func (c *Config) peerArguments() []string {
	if len(c.Service.PeerCgroups) == 0 {
		return nil
	}
	return []string{"--peer-cgroups=" + strings.Join(c.Service.PeerCgroups, ",")}
}

// ownArguments are those that a service alone takes, in a process that is root's or not.
func (c *Config) ownArguments(s service.Definition, root bool) (args []string) {
	if s.Role == role.NodeAPI && !root { // root reads the originals
		args = append(args, "--api-credentials="+c.ownFolder(s.Role))
	}
	if own := c.own[string(s.Role)]; own != nil {
		own.VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				args = append(args, "--"+f.Name+"="+f.Value.String())
			}
		})
	}
	return args
}

// exclusive says what a service holds that its successor cannot have beside it.
func (c *Config) exclusive(r role.Role) string {
	k := c.Kubelet
	if r == role.NodeAPI && (*k.Kubelet.EnableServer || *k.Kubelet.HealthzPort > 0) {
		return "the ports of the HTTP API"
	}
	return ""
}

// ownFolder is where a service finds its own copies of root's files.
func (c *Config) ownFolder(r role.Role) string {
	return filepath.Join(c.Service.RuntimeDir, "credentials", string(r))
}

// resolvedPath is the file of the kubelet's configuration as the service should see it.
func (c *Config) resolvedPath(s service.Definition) string {
	return group.ResolvedFile(c.Service.RuntimeDir, s.Role)
}

// offDuration is a duration of which "off" is 0.
type offDuration time.Duration

var _ pflag.Value = (*offDuration)(nil)

func (d *offDuration) Set(s string) error {
	if s == "off" || s == "0" {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`%q is no duration: give one such as "10s", or "off"`, s)
	}
	if v < 0 {
		return fmt.Errorf("%v is negative: give a positive duration, or \"off\"", v)
	}
	*d = offDuration(v)
	return nil
}

func (d *offDuration) String() string { return time.Duration(*d).String() }

func (d *offDuration) Type() string { return "duration or off" }
