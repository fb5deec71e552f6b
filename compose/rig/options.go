package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/machine"
)

// Agent is the program that acts as the node.
type Agent string

// The node agents.
const (
	AgentMicrolet Agent = "microlet" // microlet up, supervised as systemd would
	AgentKubelet  Agent = "kubelet"  // the real kubelet of the control plane's version
	AgentNone     Agent = "none"     // nothing: for work on single services by hand
)

// Options say what Up shall make.
type Options struct {
	// Name of the instance: at most 20 lower-case letters, digits and inner
	// dashes. Default: "default".
	Name string
	// Dir is the instance's folder, which must not exist or be empty. Unix
	// sockets limit its length to 50 bytes. Default: /var/lib/microlet-rig/<name>.
	Dir string
	// Agent is the node agent. Default: AgentMicrolet.
	Agent Agent
	// AgentArgs are added to the agent's command line.
	AgentArgs []string
	// AgentEnv is added to the agent's environment, as NAME=value.
	AgentEnv []string
	// AgentWatchdog: microlet is killed and restarted if its own watchdog messages stop for this long. Default: 10 s;
	// below 0: off.
	AgentWatchdog time.Duration
	// Microlet is the microlet executable. Default: bin/microlet of the
	// repository.
	Microlet string
	// Machine gives the node a machine of its own, with systemd and cgroup v2: containerd and the agent are services
	// there, and find their files where a server has them. That machine uses only the switch of AgentWatchdog, because its
	// unit has a period of its own.
	Machine bool
	// MachineMemory is that machine's memory in MiB. Default: 3072.
	MachineMemory int
	// CgroupDriver is the node's: cgroupfs or systemd. Default: systemd on a machine of its own, and cgroupfs here,
	// where no systemd need run.
	CgroupDriver string
	// MaxPods of the node. Default: 250.
	MaxPods int
	// NodeDisk and ImageDisk are the sizes in MiB of filesystems of their own below the agent's root directory and below
	// containerd's, which tests can fill. A machine of the node's own has none of them. Default: 0, which leaves both on
	// the filesystem of Dir. How full that is is not the node's business: the agent's thresholds ignore it.
	NodeDisk, ImageDisk int
	// DefaultPlaces puts what belongs to the agent where a kubelet has it by
	// default, for tests that know no other place: the folders /var/lib/kubelet
	// and /var/log/pods and the socket /run/containerd/containerd.sock, which are
	// links to the instance's, the pods' cgroups below /kubepods, and the
	// read-only API at port 10255 of the node's address.
	// The agent also gets a folder of static pods, and the periods and thresholds of
	// Kubernetes' own tests of a node. Up fails on a machine that has one of these
	// places already: there is one such instance at a time.
	// A machine of the node's own has these places by nature. There the agent's service
	// is SuiteUnit, which systemd does not start again: tests kill it and start it. Its
	// drop-ins are in DropInDir, and it listens at every address, as by default.
	// The conditions of its node do not taint it: Kubernetes' own tests of a node
	// run beside an API server and etcd alone, and take a tainted node for none.
	DefaultPlaces bool
	// Standalone gives the agent no credentials of the API server: it runs static pods, and there is no Node. With
	// Machine it needs DefaultPlaces, and every caller may use the agent's HTTPS API. On this machine Up builds and starts
	// what a node runs, and no control plane: see Join.
	Standalone bool
	// Open lets every caller use the agent's HTTPS API. The API server has no certificate there, so the agent's client CA
	// can be replaced. It needs Machine and DefaultPlaces.
	Open bool
	// With names groups of programs and images that are not always needed: GroupKubelet (AgentKubelet implies it),
	// GroupConformance, GroupNodeConformance, GroupPrometheus, GroupMetricsServer, GroupKubeadm, GroupCSI, GroupCSIMock,
	// GroupTraces, GroupNFS, GroupDevices, GroupMachine (for Build; Machine implies it). The images are pushed to the
	// instance's registry.
	With []string
	// Source is a folder inside the repository, where the pins of the real
	// programs are. Default: the working directory.
	Source string
	// Keep keeps an instance that did not come up, for a look at it. It is in
	// the way of the next one of its name until Down or Clean.
	Keep bool
	// Out gets progress, a line at a time. Default: nowhere.
	Out io.Writer
}

// Groups of programs and images for Options.With.
const (
	GroupKubelet         = build.GroupKubelet
	GroupConformance     = build.GroupConformance
	GroupNodeConformance = build.GroupNodeConformance
	GroupPrometheus      = build.GroupPrometheus
	GroupMetricsServer   = build.GroupMetricsServer
	GroupMachine         = build.GroupMachine
	GroupKubeadm         = build.GroupKubeadm
	GroupCSI             = build.GroupCSI
	GroupCSIMock         = build.GroupCSIMock
	GroupTraces          = build.GroupTraces
	GroupNFS             = build.GroupNFS
	GroupDevices         = build.GroupDevices
)

const (
	cgroupfsDriver = "cgroupfs"
	systemdDriver  = "systemd"
)

var nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

func checkName(name string) error {
	if !nameRE.MatchString(name) {
		return fmt.Errorf("instance name %q: use at most 20 lower-case letters, digits and inner dashes", name)
	}
	return nil
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = "default"
	}
	if err := checkName(o.Name); err != nil {
		return o, err
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(home, o.Name)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("instance folder %q: %w", o.Dir, err)
	}
	o.Dir = dir
	// The longest socket path below it is the kubelet's, and the kernel
	// accepts 107 bytes.
	const longest = 50
	if len(o.Dir) > longest {
		return o,
			fmt.Errorf("instance folder %q has %d bytes, at most %d are possible since unix sockets are below it: choose a "+
				"shorter one", o.Dir, len(o.Dir), longest)
	}
	switch o.Agent {
	case "":
		o.Agent = AgentMicrolet
	case AgentMicrolet, AgentKubelet, AgentNone:
	default:
		return o, fmt.Errorf("agent %q: use %s, %s or %s", o.Agent, AgentMicrolet, AgentKubelet, AgentNone)
	}
	for _, group := range o.With {
		if !slices.Contains(build.Groups, group) {
			return o, fmt.Errorf("group %q: there are %s", group, strings.Join(build.Groups, " and "))
		}
	}
	if err := o.machineDefaults(); err != nil {
		return o, err
	}
	if err := o.checkDisks(); err != nil {
		return o, err
	}
	if o.AgentWatchdog == 0 {
		o.AgentWatchdog = 10 * time.Second
	}
	if o.MaxPods == 0 {
		o.MaxPods = 250
	}
	if o.MaxPods < 1 || o.MaxPods > 1000 {
		return o, fmt.Errorf("max pods %d: use 1 to 1000, the node's subnet holds no more", o.MaxPods)
	}
	if o.Source == "" {
		if o.Source, err = os.Getwd(); err != nil {
			return o, fmt.Errorf("find the repository: %w", err)
		}
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o, nil
}

// machineDefaults sets and checks what depends on whether the node has a machine of its own.
func (o *Options) machineDefaults() error {
	if o.CgroupDriver == "" {
		o.CgroupDriver = cgroupfsDriver
		if o.Machine {
			o.CgroupDriver = systemdDriver
		}
	}
	if o.CgroupDriver != cgroupfsDriver && o.CgroupDriver != systemdDriver {
		return fmt.Errorf("cgroup driver %q: use %s or %s", o.CgroupDriver, cgroupfsDriver, systemdDriver)
	}
	if o.CgroupDriver == systemdDriver && !o.Machine {
		return errors.New("the cgroup driver systemd needs a machine of the node's own: another instance's pods would be " +
			"in the same slices")
	}
	if o.Machine && slices.Contains(o.With, GroupCSI) {
		return fmt.Errorf("group %s: its driver runs beside the node agent, and not in a machine of the node's own: leave "+
			"out one of them", GroupCSI)
	}
	if o.Machine && slices.Contains(o.With, GroupTraces) {
		return fmt.Errorf("group %s: its receiver listens on this machine's loopback address, and not in a machine of the "+
			"node's own: leave out one of them", GroupTraces)
	}
	if o.MachineMemory == 0 {
		o.MachineMemory = 3072
	}
	switch {
	case o.Standalone && o.Agent == AgentNone:
		return errors.New("standalone without an agent: choose microlet or kubelet")
	case o.Standalone && o.Machine && !o.DefaultPlaces:
		return errors.New("standalone on a machine of the node's own needs the default places, which Kubernetes' suites " +
			"alone use: leave out the machine")
	case o.Standalone && !o.Machine && o.DefaultPlaces:
		return errors.New("standalone with the default places needs a machine of the node's own")
	case o.Open && (!o.Machine || !o.DefaultPlaces):
		return errors.New("an open agent needs a machine of the node's own, and the default places")
	}
	// Before anything is built.
	_, err := machine.AskedKind()
	return err
}

// leastDisk is the least size of a filesystem of its own in MiB. ext4 needs some of it for itself.
const leastDisk = 64

func (o Options) checkDisks() error {
	for name, size := range map[string]int{"node disk": o.NodeDisk, "image disk": o.ImageDisk} {
		switch {
		case size == 0:
		case o.Machine:
			return fmt.Errorf("%s: a machine of the node's own has one disk: leave out one of them", name)
		case size < leastDisk:
			return fmt.Errorf("%s of %d MiB: use 0 for none, or at least %d", name, size, leastDisk)
		}
	}
	return nil
}
