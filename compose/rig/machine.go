package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/config"
	"github.com/microlet/microlet/compose/rig/internal/pki"
	"github.com/microlet/microlet/compose/rig/internal/process"
	"github.com/microlet/microlet/compose/rig/machine"
)

// machineRecord is what the rig remembers of the node's machine, beyond what the machine's own folder has.
type machineRecord struct {
	Assets       machine.Assets `json:"assets"`
	Memory       int            `json:"memory"` // MiB
	CgroupDriver string         `json:"cgroupDriver"`
	Unit         string         `json:"unit"` // the path of microlet's unit on this machine
}

// prepareMachine makes what the machine starts from; nil without Options.Machine.
func (o Options) prepareMachine(ctx context.Context) (*machineRecord, error) {
	if !o.Machine {
		return nil, nil
	}
	tools, err := build.Locate(o.Source)
	if err != nil {
		return nil, err
	}
	assets, err := machine.Build(ctx, o.Source, o.Out)
	if err != nil {
		return nil, err
	}
	unit := filepath.Join(tools, "../../deploy/systemd/microlet.service")
	return &machineRecord{Assets: assets, Memory: o.MachineMemory, CgroupDriver: o.CgroupDriver, Unit: unit}, nil
}

// Reservations is the folder in which a machine reserves its pods' addresses, once there was one.
const Reservations = "/run/cni/networks"

// OnMachine reports whether the node has a machine of its own.
func (i *Instance) OnMachine() bool { return i.onMachine() }

func (i *Instance) onMachine() bool { return i.r.Machine != nil }

func (i *Instance) machineDir() string     { return filepath.Join(i.r.Dir, "machine") }
func (i *Instance) machineConsole() string { return filepath.Join(i.machineDir(), "console.log") }

// stage is the folder with the node's own files, as they are put into its machine.
func (i *Instance) stage() string { return filepath.Join(i.r.Dir, "node") }

// Machine is the node's own machine. Cutting its power is CutPower's matter, since the instance knows its process.
func (i *Instance) Machine() (machine.Machine, error) {
	if !i.onMachine() {
		return nil, fmt.Errorf("the node of instance %s has no machine of its own", i.r.Name)
	}
	i.machineMu.Lock()
	defer i.machineMu.Unlock()
	if i.machine != nil {
		return i.machine, nil
	}
	m, err := machine.Open(i.machineDir())
	if err != nil {
		return nil, err
	}
	i.machine = m
	return m, nil
}

// stageMachine writes the node's files: where kubeadm and a server's packages have them.
func (i *Instance) stageMachine(o Options) error {
	if err := i.containerdConfig().Write(); err != nil {
		return err
	}
	const ca = "/etc/kubernetes/pki/ca.crt"
	k := config.Kubelet{
		RuntimeEndpoint: i.RuntimeEndpoint(),
		CgroupDriver:    o.CgroupDriver,
		NodeIP:          i.r.Network.NodeIP,
		DNS:             i.r.Network.DNSService,
		ResolvConf:      "/etc/resolv.conf",
		ClientCA:        ca,
		MaxPods:         int32(o.MaxPods),
	}
	if o.DefaultPlaces {
		k.StaticPods, k.ReadOnlyPort, k.ForSuite = i.staticPodsDir(), ReadOnlyPort, true
		open := o.Standalone || o.Open
		k.NoReviews, k.Anonymous = open, open
		k.NodeIP = netip.IPv4Unspecified()
		for _, dir := range []string{i.staticPodsDir(), DropInDir} {
			if err := os.MkdirAll(filepath.Join(i.stage(), dir), 0o755); err != nil {
				return fmt.Errorf("write the machine's files: %w", err)
			}
		}
	}
	if err := k.Write(filepath.Join(i.stage(), i.KubeletConfig())); err != nil {
		return err
	}
	for to, from := range map[string]string{
		ca:                             filepath.Join(i.pkiDir(), pki.CA),
		"/etc/kubernetes/kubelet.conf": i.NodeKubeconfig(),
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("write the machine's files: %w", err)
		}
		to = filepath.Join(i.stage(), to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("write the machine's files: %w", err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return fmt.Errorf("write the machine's files: %w", err)
		}
	}
	return nil
}

func (i *Instance) machineContainerdConfig() config.Containerd {
	return config.Containerd{
		Dir:        "/etc/containerd",
		Into:       i.stage(),
		Root:       "/var/lib/containerd",
		State:      "/run/containerd",
		Socket:     i.RuntimeSocket(),
		ShimSocket: "/run/containerd/s",
		RuncRoot:   "/run/containerd/runc",
		Runc:       "/usr/local/bin/runc",
		PluginDir:  "/opt/cni/bin",
		// An address is a network namespace's, and those end with the boot. On the disk a reservation would outlive a
		// power cut that took the name of its owner, which the plugin writes without a sync, and never be released.
		Reservations:  Reservations,
		SyncImages:    true,
		Pause:         PauseImage,
		Registry:      i.Registry(),
		Bridge:        i.r.Network.Bridge,
		PodCIDR:       i.r.Network.PodCIDR,
		Gateway:       i.r.Network.Gateway,
		SystemdCgroup: i.r.Machine.CgroupDriver == systemdDriver,
	}
}

// startMachine starts the machine and puts the node's files into it.
func (i *Instance) startMachine(ctx context.Context) error {
	begin := time.Now()
	link := machine.Link{
		Tap:     i.r.Network.Tap,
		Address: netip.PrefixFrom(i.r.Network.NodeIP, i.r.Network.Server.Bits()),
		Gateway: i.r.Network.Server.Addr(),
	}
	m, err := machine.Start(ctx, machine.Options{
		Dir:      i.machineDir(),
		Name:     i.NodeName(),
		Assets:   i.r.Machine.Assets,
		Memory:   i.r.Machine.Memory,
		Link:     &link,
		Detached: true,
		Cgroups:  i.tree.ProcsFiles(i.programCgroup(Machine)),
	})
	if err != nil {
		return err
	}
	i.machineMu.Lock()
	i.machine = m
	i.machineMu.Unlock()
	if err := i.recordMachine(m); err != nil {
		return err
	}
	if err := m.CopyIn(ctx, i.stage(), "/"); err != nil {
		return err
	}
	i.printf("%s is ready after %s: %s", Machine, time.Since(begin).Round(100*time.Millisecond), m.Kind())
	if i.Agent() == AgentNone {
		return nil
	}
	return i.installAgent(ctx)
}

// recordMachine records the machine's process as the program that it is for the instance.
func (i *Instance) recordMachine(m machine.Machine) error {
	p, err := process.Find(Machine, m.PID())
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.r.Processes[Machine] = p
	return i.r.save()
}

// CutPower ends the node's machine at once, with all that it had not written to its disk.
func (i *Instance) CutPower(ctx context.Context) error {
	m, err := i.Machine()
	if err != nil {
		return err
	}
	return m.CutPower(ctx)
}

// PowerOn starts the node's machine after CutPower, with its disk as it was left. The runtime and the agent start with
// it, as the services of a server do.
func (i *Instance) PowerOn(ctx context.Context) error {
	m, err := i.Machine()
	if err != nil {
		return err
	}
	if err := m.PowerOn(ctx); err != nil {
		return err
	}
	return i.recordMachine(m)
}

// agentUnit is the name of the agent's service on the node's machine.
func (i *Instance) agentUnit() string { return i.unitOf(i.Agent()) }

func (i *Instance) unitOf(agent Agent) string {
	if i.r.DefaultPlaces {
		return SuiteUnit + ".service"
	}
	return string(agent) + ".service"
}

// installAgent puts the agent and its unit into the machine, and has it start with the machine.
func (i *Instance) installAgent(ctx context.Context) error {
	m, err := i.Machine()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(i.r.Machine.Unit)
	if err != nil {
		return fmt.Errorf("read the agent's unit: %w", err)
	}
	i.mu.Lock()
	agent, args, executable, extra := i.r.Agent, i.r.AgentArgs, i.r.Microlet, i.unitExtra()
	if agent == AgentKubelet {
		executable = i.r.Binaries[build.Kubelet]
	}
	i.mu.Unlock()
	unit := string(text)
	if agent == AgentKubelet {
		if unit, err = kubeletUnit(unit); err != nil {
			return err
		}
	}
	if err := m.CopyIn(ctx, executable, path.Join("/usr/bin", string(agent))); err != nil {
		return err
	}
	// microlet looks for it beside itself, and does without.
	local := filepath.Join(filepath.Dir(executable), "microlet-local")
	if _, err := os.Stat(local); agent == AgentMicrolet && err == nil {
		if err := m.CopyIn(ctx, local, "/usr/bin/microlet-local"); err != nil {
			return err
		}
	}
	if agent == AgentMicrolet && i.r.DefaultPlaces {
		if err := i.installAsPackage(ctx, m); err != nil {
			return err
		}
	}
	// kubeadm has a node's own flags there.
	flags := append([]string{"--node-ip=" + i.NodeIP(), "--hostname-override=" + i.NodeName()}, args...)
	if i.r.DefaultPlaces {
		flags = append(flags, "--config-dir="+DropInDir)
	}
	for _, f := range []struct{ to, text string }{
		{"/etc/systemd/system/" + i.unitOf(agent), unit},
		{"/etc/systemd/system/" + i.unitOf(agent) + ".d/rig.conf", extra},
		{"/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"" + strings.Join(flags, " ") + "\"\n"},
	} {
		if err := m.Write(ctx, f.to, []byte(f.text), 0o644); err != nil {
			return err
		}
	}
	other := AgentKubelet
	if agent == AgentKubelet {
		other = AgentMicrolet
	}
	// The other one's unit is taken away, for it is not there to be chosen by a start of the machine.
	const script = `test "$1" = "$2" || { systemctl disable --quiet "$2" 2>/dev/null; rm -rf "/etc/systemd/system/$2" "/etc/systemd/system/$2.d"; }; systemctl daemon-reload && systemctl enable --quiet "$1" containerd.service && sync`
	_, err = i.must(ctx, "sh", "-c", script, "install", i.unitOf(agent), i.unitOf(other))
	return err
}

// installAsPackage makes the services' users and the rule of D-Bus that microlet's packages bring: without them, the
// Node stays ready while the machine shuts down, because only logind may announce a shutdown.
func (i *Instance) installAsPackage(ctx context.Context, m machine.Machine) error {
	deploy := filepath.Join(filepath.Dir(i.r.Machine.Unit), "..")
	for from, to := range map[string]string{
		"sysusers.d": "/usr/lib/sysusers.d", "dbus": "/usr/share/dbus-1/system.d",
	} {
		const file = "microlet.conf"
		if err := m.CopyIn(ctx, filepath.Join(deploy, from, file), path.Join(to, file)); err != nil {
			return err
		}
	}
	_, err := i.must(ctx, "sh", "-c", "systemd-sysusers microlet.conf && systemctl reload dbus.service")
	return err
}

// unitExtra is what the rig adds to the agent's unit.
func (i *Instance) unitExtra() string {
	extra := &strings.Builder{}
	extra.WriteString("# What the rig adds.\n[Service]\n")
	for _, e := range i.r.AgentEnv {
		_, _ = fmt.Fprintf(extra, "Environment=%s\n", strconv.Quote(e))
	}
	if i.r.Watchdog < 0 {
		extra.WriteString("WatchdogSec=0\n")
	}
	if i.r.DefaultPlaces {
		// Tests that have killed the agent look for it among the units, and start it themselves.
		extra.WriteString("Restart=no\nRemainAfterExit=yes\n")
	}
	if i.r.Standalone {
		extra.WriteString("Environment=KUBELET_KUBECONFIG_ARGS=\n")
	}
	return extra.String()
}

var execLine = regexp.MustCompile(`(?m)^ExecStart=/usr/bin/microlet up (.*) \$MICROLET_EXTRA_ARGS$`)

// kubeletUnit makes of microlet's unit one for the kubelet that differs in nothing but the program.
func kubeletUnit(text string) (string, error) {
	if !execLine.MatchString(text) || !strings.Contains(text, "\nConflicts=kubelet.service\n") {
		return "", errors.New("make the kubelet's unit: microlet's is not what it was: look at kubeletUnit")
	}
	text = execLine.ReplaceAllString(text, "ExecStart=/usr/bin/kubelet $1")
	return strings.Replace(text, "\nConflicts=kubelet.service\n", "\nConflicts=microlet.service\n", 1), nil
}

// isUnit reports whether the program is a service of the node's machine.
func (i *Instance) isUnit(program string) bool {
	return i.onMachine() && (program == Containerd || program == AgentProgram)
}

func (i *Instance) unitName(program string) string {
	if program == AgentProgram {
		return i.agentUnit()
	}
	return program + ".service"
}

// must runs a command in the node's machine that has to succeed.
func (i *Instance) must(ctx context.Context, args ...string) (string, error) {
	m, err := i.Machine()
	if err != nil {
		return "", err
	}
	r, err := m.Run(ctx, machine.Command{Args: args})
	if err != nil {
		return "", err
	}
	if r.Code != 0 {
		return "", fmt.Errorf("%s has ended with %d: %s%s", strings.Join(args, " "), r.Code, r.Stderr, r.Stdout)
	}
	return string(r.Stdout), nil
}

// writeJournal writes what a service has said since the machine was made.
func (i *Instance) writeJournal(ctx context.Context, unit string, to io.Writer) error {
	m, err := i.Machine()
	if err != nil {
		return err
	}
	r, err := m.Run(ctx,
		machine.Command{Args: []string{"journalctl", "--no-pager", "-o", "cat", "-u", unit}, Output: to})
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("journalctl has ended with %d: %s", r.Code, r.Stderr)
	}
	return err
}

// startUnit starts a service and waits until it is ready.
func (i *Instance) startUnit(ctx context.Context, program string) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	unit := i.unitName(program)
	if _, err := i.must(ctx, "systemctl", "start", unit); err != nil {
		// The journal shows why, if the machine still answers.
		journal, _ := i.must(ctx, "journalctl", "-n", "15", "--no-pager", "-o", "cat", "-u", unit)
		return fmt.Errorf("start %s: %w; the end of its journal:\n%s", program, err, journal)
	}
	if err := i.await(ctx, program, i.check(program)); err != nil {
		return err
	}
	i.printf("%s is ready after %s", program, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func (i *Instance) stopUnit(ctx context.Context, program string) error {
	begin := time.Now()
	if _, err := i.must(ctx, "systemctl", "stop", i.unitName(program)); err != nil {
		return fmt.Errorf("stop %s: %w", program, err)
	}
	i.printf("%s has ended after %s", program, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// signalUnit sends a signal to a service's main process.
func (i *Instance) signalUnit(ctx context.Context, program string, sig unix.Signal) error {
	_, err := i.must(ctx, "systemctl", "kill", "--kill-whom=main", "--signal="+strconv.Itoa(int(sig)),
		i.unitName(program))
	return err
}

// unitStatus is what systemd knows of a service.
func (i *Instance) unitStatus(unit string) (AgentStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	text, err := i.must(ctx, "systemctl", "show", "--timestamp=unix", "-p",
		"MainPID,NRestarts,ActiveState,ExecMainStartTimestamp,ExecMainStatus,Result", unit)
	if err != nil {
		return AgentStatus{}, fmt.Errorf("read status of the agent: %w", err)
	}
	return parseUnitStatus(text)
}

func parseUnitStatus(text string) (AgentStatus, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	var s AgentStatus
	var restarts int
	var err, err2 error
	s.PID, err = strconv.Atoi(values["MainPID"])
	restarts, err2 = strconv.Atoi(values["NRestarts"])
	if err := errors.Join(err, err2); err != nil {
		return s, fmt.Errorf("read status of the agent: %q: %w", text, err)
	}
	s.Starts = restarts + 1
	s.Ready = values["ActiveState"] == "active"
	if restarts > 0 {
		s.LastExit = fmt.Sprintf("%s, exit status %s", values["Result"], values["ExecMainStatus"])
	}
	if stamp, ok := strings.CutPrefix(values["ExecMainStartTimestamp"], "@"); ok {
		seconds, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			return s, fmt.Errorf("read status of the agent: start time: %w", err)
		}
		s.StartedAt = time.Unix(seconds, 0)
	}
	return s, nil
}
