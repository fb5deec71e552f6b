package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/pki"
	"github.com/microlet/microlet/compose/rig/internal/process"
	"github.com/microlet/microlet/compose/rig/internal/supervise"
	"github.com/microlet/microlet/compose/rig/machine"
)

// Instance is one rig: a control plane, a runtime, a registry and a node.
// Its methods may be called from several goroutines.
type Instance struct {
	tree cgroup.Tree

	// mu keeps programs from being started twice and guards what changes of r
	// after Up: the agent and the processes.
	mu sync.Mutex
	r  record

	machineMu sync.Mutex
	machine   machine.Machine // set at the first use

	outMu sync.Mutex // programs start at once, and each says so
	out   io.Writer
}

// Open returns an instance that was started before, by whatever process.
func Open(name string) (*Instance, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	r, err := loadRecord(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no instance %s: start it with rig up --name %s: %w", name, name, err)
	}
	if err != nil {
		return nil, err
	}
	return attach(r, io.Discard)
}

// List returns the names of all instances of the machine that have a record.
func List() ([]string, error) { return recorded() }

func attach(r record, out io.Writer) (*Instance, error) {
	tree, err := cgroup.Detect()
	if err != nil {
		return nil, err
	}
	if same, err := process.IsBoot(r.BootID); err != nil {
		return nil, err
	} else if !same {
		r.Processes = nil // the machine was rebooted since
	}
	if r.Processes == nil {
		r.Processes = map[string]process.Record{}
	}
	return &Instance{r: r, out: out, tree: tree}, nil
}

// Name of the instance.
func (i *Instance) Name() string { return i.r.Name }

// Dir is the instance's folder.
func (i *Instance) Dir() string { return i.r.Dir }

// Agent is the kind of the node agent.
func (i *Instance) Agent() Agent {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.r.Agent
}

// Standalone is whether the node has no control plane; see Options.Standalone.
func (i *Instance) Standalone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.r.Standalone
}

// NodeName is the name of the Node, whether its agent runs or not.
func (i *Instance) NodeName() string { return "rig-" + i.r.Name }

// NodeIP is the node's address: the bridge's, or that of the node's own machine.
func (i *Instance) NodeIP() string { return i.r.Network.NodeIP.String() }

// PodCIDR is the network from which pods get their addresses.
func (i *Instance) PodCIDR() string { return i.r.Network.PodCIDR.String() }

// ClusterDNS is the cluster IP that pods ask for names. Nothing
// answers there.
func (i *Instance) ClusterDNS() string { return i.r.Network.DNSService.String() }

// Kubeconfig is the path of the administrator's kubeconfig.
func (i *Instance) Kubeconfig() string { return pki.Kubeconfig(i.pkiDir(), pki.Admin) }

// NodeKubeconfig is the path, on this machine, of the node agent's kubeconfig:
// system:node:<NodeName> in the group system:nodes.
func (i *Instance) NodeKubeconfig() string { return pki.Kubeconfig(i.pkiDir(), pki.Node) }

// RESTConfig is the administrator's access to the API server, without a
// limit on requests.
func (i *Instance) RESTConfig() (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", i.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	c.QPS = -1
	return c, nil
}

// Client is a client of the API server with the administrator's rights.
func (i *Instance) Client() (kubernetes.Interface, error) {
	c, err := i.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// RuntimeSocket is the path of containerd's CRI socket, on the node; see DialRuntime.
func (i *Instance) RuntimeSocket() string {
	return i.place(filepath.Join(i.runDir(), "containerd.sock"), "/run/containerd/containerd.sock")
}

// RuntimeEndpoint is RuntimeSocket as the URL that agents take.
func (i *Instance) RuntimeEndpoint() string { return "unix://" + i.RuntimeSocket() }

// CgroupRoot is the cgroup below which the agent puts its pods, on the node.
func (i *Instance) CgroupRoot() string {
	if i.onMachine() {
		return "/"
	}
	return i.ownCgroup()
}

// ownCgroup is the cgroup in which all processes of the instance are.
func (i *Instance) ownCgroup() string { return cgroupHome + "/" + i.r.Name }

// RuntimeDir is microlet's --runtime-dir, on the node.
func (i *Instance) RuntimeDir() string {
	return i.place(filepath.Join(i.runDir(), "microlet"), "/run/microlet")
}

// RootDir is the agent's --root-dir, on the node: in place of /var/lib/kubelet where that is not the node's own.
func (i *Instance) RootDir() string {
	return i.place(filepath.Join(i.r.Dir, "kubelet"), "/var/lib/kubelet")
}

// ImageGCStateDir is microlet's --imagegc-state-dir, on the node.
func (i *Instance) ImageGCStateDir() string {
	return i.place(filepath.Join(i.r.Dir, "imagegc"), "/var/lib/microlet/imagegc")
}

// RuntimeRoot is containerd's root: the image filesystem.
func (i *Instance) RuntimeRoot() string {
	return i.place(filepath.Join(i.r.Dir, "containerd"), "/var/lib/containerd")
}

// PodLogsDir is in place of /var/log/pods, on the node.
func (i *Instance) PodLogsDir() string {
	return i.place(filepath.Join(i.r.Dir, "pods"), "/var/log/pods")
}

// KubeletConfig is the path of the KubeletConfiguration of either agent, on the node.
func (i *Instance) KubeletConfig() string {
	return i.place(filepath.Join(i.r.Dir, "etc/kubelet.yaml"), "/var/lib/kubelet/config.yaml")
}

// Registry is the address of the image registry, host:port, plain HTTP. It
// answers for every registry's name.
func (i *Instance) Registry() string {
	if i.onMachine() {
		return net.JoinHostPort(i.r.Network.Server.Addr().String(), strconv.Itoa(i.r.Ports.Registry))
	}
	return loopback(i.r.Ports.Registry)
}

// HealthAddress is where the agent serves /healthz, on the node.
func (i *Instance) HealthAddress() string {
	return i.place(loopback(i.r.Ports.AgentHealth), loopback(10248))
}

// place is something's place on the node: here, or as a server has it where the node has a machine of its own.
func (i *Instance) place(here, there string) string {
	if i.onMachine() {
		return there
	}
	return here
}

// Microlet is the path of the microlet executable; empty if it has none.
func (i *Instance) Microlet() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.r.Microlet
}

// SetOutput sets where progress goes, a line at a time.
func (i *Instance) SetOutput(out io.Writer) {
	i.outMu.Lock()
	defer i.outMu.Unlock()
	i.out = out
}

// Log is the path of the log of a program, which Programs names.
func (i *Instance) Log(program string) string {
	return filepath.Join(i.r.Dir, "logs", program+".log")
}

// KeepAgentLog writes the agent's log to a file of this machine.
func (i *Instance) KeepAgentLog(ctx context.Context, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("keep the agent's log: %w", err)
	}
	if err := errors.Join(i.writeAgentLog(ctx, f), f.Close()); err != nil {
		return fmt.Errorf("keep the agent's log: %w", err)
	}
	return nil
}

func (i *Instance) writeAgentLog(ctx context.Context, to io.Writer) error {
	if i.onMachine() {
		return i.writeJournal(ctx, i.agentUnit(), to)
	}
	from, err := os.Open(i.Log(AgentProgram))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, from.Close())
}

// Binary is the path of a program that the rig built, such as kubectl or ctr;
// empty if there is none of that name.
func (i *Instance) Binary(name string) string { return i.r.Binaries[name] }

// Kubectl is the path of kubectl.
func (i *Instance) Kubectl() string { return i.r.Binaries[build.Kubectl] }

// AgentStatus is what the loop around the agent knows of it.
type AgentStatus = supervise.Status

// AgentStatus returns the agent's pid, starts and readiness.
func (i *Instance) AgentStatus() (AgentStatus, error) {
	if i.Agent() == AgentNone {
		return AgentStatus{}, fmt.Errorf("instance %s has no agent", i.r.Name)
	}
	if i.onMachine() {
		return i.unitStatus(i.agentUnit())
	}
	return supervise.ReadStatus(i.agentStatusFile())
}

// Status of one program of the instance.
type Status struct {
	Program string `json:"program"`
	PID     int    `json:"pid"`
	Running bool   `json:"running"`
}

// Status returns the state of each program, in the order of their start.
func (i *Instance) Status(context.Context) []Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []Status
	for _, name := range i.programs() {
		p := i.r.Processes[name]
		all = append(all, Status{Program: name, PID: p.PID, Running: p.Alive()})
	}
	return all
}

func (i *Instance) pkiDir() string          { return filepath.Join(i.r.Dir, "pki") }
func (i *Instance) runDir() string          { return filepath.Join(runHome, i.r.Name) }
func (i *Instance) binDir() string          { return filepath.Join(i.r.Dir, "bin") }
func (i *Instance) agentStatusFile() string { return filepath.Join(i.runDir(), "agent.json") }
func (i *Instance) programCgroup(name string) string {
	return i.ownCgroup() + "/rig/" + name
}

func (i *Instance) server() string {
	return "https://" + net.JoinHostPort(i.r.Network.Server.Addr().String(), strconv.Itoa(APIPort))
}

func (i *Instance) printf(format string, args ...any) {
	i.outMu.Lock()
	defer i.outMu.Unlock()
	_, _ = fmt.Fprintf(i.out, "rig: "+format+"\n", args...)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
