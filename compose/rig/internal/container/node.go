package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/config"
	"github.com/microlet/microlet/compose/rig/internal/images"
	"github.com/microlet/microlet/compose/rig/internal/mounts"
	"github.com/microlet/microlet/compose/rig/internal/network"
	"github.com/microlet/microlet/compose/rig/internal/pki"
)

const (
	// instance marks the node's firewall rules. The network namespace is the node's own.
	instance = "compose"
	// clearTimeout is less than what Docker gives a container to stop.
	clearTimeout = 8 * time.Second
	// reapPeriod is how often children that others left are reaped.
	reapPeriod = time.Second

	// made is the file that says that the node is made, in the folder of the node agent.
	made = "made"
	// Certificates and configuration, as compose.yaml names them.
	nodeKubeconfig = "node.kubeconfig"
	kubeletConfig  = "kubelet.yaml"
	clientCA       = "ca.crt"
	resolvConf     = "resolv.conf"
	// Registry answers for every registry's name.
	registry      = "127.0.0.1:5000"
	runtimeSocket = "/run/containerd/containerd.sock"
)

// Node holds the namespaces that all containers of a node share, and makes what is in them before the first program.
type Node struct {
	Name         string // of the Node object
	Secrets      string // the folder of what only the control plane may read
	Agent        string // the folder of what the node agent is given
	Runtime      string // the folder of containerd's configuration
	RootDir      string // the node agent's root folder
	Pods         string // the cgroup of the pods
	Services     string // the cgroup below which the containers of the services are
	CgroupDriver string
	Out          io.Writer
}

// Run makes the node and holds it until the context ends. It then kills the rest of the pods and removes their cgroups
// and mounts, because no other process would.
func (n *Node) Run(ctx context.Context) error {
	tree, err := cgroup.Detect()
	if err != nil {
		return err
	}
	if err := n.makeNode(tree); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(n.Out, "rig-node: the node is made")
	t := time.NewTicker(reapPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTimeout)
			defer cancel()
			return n.clear(ctx, tree)
		case <-t.C:
			reap()
		}
	}
}

// reap collects processes that have ended without a parent, because this is the first process of their namespace.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}

func (n *Node) makeNode(tree cgroup.Tree) error {
	plan, err := network.For(0)
	if err != nil {
		return err
	}
	if _, err := network.EnableForwarding(); err != nil {
		return err
	}
	if err := network.Setup(plan, instance); err != nil {
		return err
	}
	if err := tree.Create(n.Pods, true); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(n.Agent, made)); err == nil {
		return nil // by an earlier container of the same volumes: what runs knows these certificates
	}
	if err := n.writeSecrets(plan); err != nil {
		return err
	}
	if err := n.writeRuntime(plan); err != nil {
		return err
	}
	if err := n.writeAgent(plan); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.Agent, made), nil, 0o644)
}

func (n *Node) writeSecrets(plan network.Plan) error {
	return pki.Write(pki.Input{
		Dir: n.Secrets, Server: fmt.Sprintf("https://%s:%d", plan.Server.Addr(), network.APIPort),
		Cluster: instance, NodeName: n.Name,
		ServerIPs: []net.IP{plan.Server.Addr().AsSlice(), plan.APIService.AsSlice()},
	}, time.Now())
}

func (n *Node) writeRuntime(plan network.Plan) error {
	return config.Containerd{
		Dir:           n.Runtime,
		Root:          "/var/lib/containerd",
		State:         "/run/containerd/state",
		Socket:        runtimeSocket,
		ShimSocket:    "/run/containerd/s",
		RuncRoot:      "/run/containerd/runc",
		Runc:          "/usr/local/bin/runc",
		PluginDir:     "/opt/cni/bin",
		Reservations:  "/var/lib/containerd/ipam",
		Registry:      registry,
		Pause:         images.Pause,
		Bridge:        plan.Bridge,
		PodCIDR:       plan.PodCIDR,
		Gateway:       plan.Gateway,
		SystemdCgroup: n.CgroupDriver == "systemd",
		RestrictOOM:   true,
	}.Write()
}

// writeAgent writes what the node agent is given, and nothing that the control plane alone may read.
func (n *Node) writeAgent(plan network.Plan) error {
	for from, to := range map[string]string{
		filepath.Join(n.Secrets, pki.CA):    clientCA,
		pki.Kubeconfig(n.Secrets, pki.Node): nodeKubeconfig,
	} {
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("files of the node agent: %w", err)
		}
		if err := os.WriteFile(filepath.Join(n.Agent, to), data, 0o600); err != nil {
			return fmt.Errorf("files of the node agent: %w", err)
		}
	}
	resolv := filepath.Join(n.Agent, resolvConf)
	if err := config.ResolvConf(resolv); err != nil {
		return err
	}
	return config.Kubelet{
		RuntimeEndpoint: "unix://" + runtimeSocket,
		CgroupDriver:    n.CgroupDriver,
		CgroupRoot:      n.Pods,
		NodeIP:          plan.NodeIP,
		DNS:             plan.DNSService,
		ResolvConf:      resolv,
		ClientCA:        filepath.Join(n.Agent, clientCA),
		PluginDir:       filepath.Join(n.RootDir, "volume-plugins"),
		MaxPods:         110,
		// The disk is the developer's.
		ForeignNodeFs: true, ForeignImageFs: true,
	}.Write(filepath.Join(n.Agent, kubeletConfig))
}

// clear takes away what would outlive the containers: processes of pods, their cgroups, and the mounts of their
// volumes, which are the host's too.
func (n *Node) clear(ctx context.Context, tree cgroup.Tree) error {
	errs := []error{}
	if err := cgroup.Kill(ctx, n.Pods); err != nil {
		errs = append(errs, err)
	}
	reap()
	errs = append(errs, tree.Remove(ctx, n.Pods), n.unmount())
	n.removeParent(tree)
	return errors.Join(errs...)
}

// removeParent removes the cgroup that held the services' containers. Docker makes it and leaves it, but a slice is
// systemd's. One that is still in use stays.
func (n *Node) removeParent(tree cgroup.Tree) {
	if !filepath.IsAbs(n.Services) {
		return
	}
	for _, dir := range tree.Existing(n.Services) {
		_ = os.Remove(dir)
	}
}

// unmount takes away what is mounted below the root folder; the folder itself is a mount of the container.
func (n *Node) unmount() error {
	entries, err := os.ReadDir(n.RootDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := mounts.RemoveUnder(filepath.Join(n.RootDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
