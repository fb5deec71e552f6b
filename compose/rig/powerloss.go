package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/mounts"
)

// LosePower leaves of the node what a power cut leaves of one: what is on its disks. The agent, containerd, shims,
// containers and device plugins are killed, their mounts and cgroups go, and so do the files that they have in memory.
// The control plane, which stands for other machines, lives on. So does the kernel: its boot ID, its clock and the
// node's network stay as they are. An instance with a machine of its own has its power cut instead.
//
// StartNode starts the node again.
func (i *Instance) LosePower(ctx context.Context) error {
	if i.onMachine() {
		return errors.New("lose power: cut that of the machine")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	atOnce := downOptions{}
	problems := []error{
		i.stopOne(ctx, AgentProgram, atOnce), i.stopOne(ctx, Containerd, atOnce), i.killPods(ctx),
		cgroup.Kill(ctx, i.programCgroup(DevicePlugin)),
		mounts.RemoveUnder(append(i.inMemory(), filepath.Join(i.RootDir(), "pods"))...),
	}
	for _, path := range i.inMemory() {
		problems = append(problems, os.RemoveAll(path))
	}
	for _, child := range i.tree.Children(i.ownCgroup()) {
		if child != "rig" {
			problems = append(problems, i.tree.Remove(ctx, i.ownCgroup()+"/"+child))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("lose power: %w", err)
	}
	i.printf("the node has lost its power")
	return nil
}

// inMemory is what the node's programs have below a folder /run.
func (i *Instance) inMemory() []string {
	c := i.containerdConfig()
	return []string{c.State, c.ShimSocket, c.RuncRoot, c.Socket, i.RuntimeDir()}
}

// StartNode starts containerd and the agent after LosePower. It does not wait for the node: see WaitNodeReady.
func (i *Instance) StartNode(ctx context.Context) error {
	if err := i.StartContainerd(ctx); err != nil {
		return err
	}
	return i.StartAgent(ctx)
}
