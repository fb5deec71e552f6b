package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// RestartContainerd stops containerd and starts it again. Its shims, and so
// all containers, live on.
func (i *Instance) RestartContainerd(ctx context.Context) error {
	if err := i.stop(ctx, Containerd); err != nil {
		return err
	}
	return i.start(ctx, Containerd)
}

// StopContainerd stops containerd only: shims and containers live on.
func (i *Instance) StopContainerd(ctx context.Context) error { return i.stop(ctx, Containerd) }

// StartContainerd starts containerd after StopContainerd or a Kill.
func (i *Instance) StartContainerd(ctx context.Context) error { return i.start(ctx, Containerd) }

// StopAPIServer stops kube-apiserver; its clients live on. The controller
// manager and the scheduler may end while it is away, as they do when they
// can't reach it for long: StartAPIServer starts them again then.
func (i *Instance) StopAPIServer(ctx context.Context) error { return i.stop(ctx, APIServer) }

// StartAPIServer starts kube-apiserver after StopAPIServer or a Kill, and
// those of its clients in the control plane that have ended meanwhile.
func (i *Instance) StartAPIServer(ctx context.Context) error {
	if err := i.start(ctx, APIServer); err != nil {
		return err
	}
	for _, name := range []string{ControllerManager, Scheduler} {
		if i.process(name).Alive() {
			continue
		}
		if err := i.start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Kill sends SIGKILL to a program of the instance, which Programs name. What
// it kills stays dead until it is started again, but for the agent's loop,
// which has no Kill of its own: see KillAgent.
func (i *Instance) Kill(ctx context.Context, program string) error {
	if i.isUnit(program) {
		return i.signalUnit(ctx, program, unix.SIGKILL)
	}
	if program == AgentProgram {
		return i.KillAgent(ctx)
	}
	return i.process(program).Stop(ctx, 0)
}

// KillAgent sends SIGKILL to the agent (microlet up, or the kubelet) and waits
// for its end. The loop around it starts it again at once.
func (i *Instance) KillAgent(ctx context.Context) error {
	if i.onMachine() {
		return i.signalUnit(ctx, AgentProgram, unix.SIGKILL)
	}
	p, err := i.agentProcess()
	if err != nil {
		return err
	}
	return p.Stop(ctx, 0)
}

// SignalAgent sends a signal to the agent, such as SIGSTOP.
func (i *Instance) SignalAgent(sig unix.Signal) error {
	if i.onMachine() {
		return i.signalUnit(context.Background(), AgentProgram, sig)
	}
	p, err := i.agentProcess()
	if err != nil {
		return err
	}
	return p.Signal(sig)
}

// AgentPID is the pid of the agent as it runs now, on the node.
func (i *Instance) AgentPID() (int, error) {
	if i.onMachine() {
		status, err := i.AgentStatus()
		return status.PID, err
	}
	p, err := i.agentProcess()
	return p.PID, err
}

func (i *Instance) agentProcess() (process.Record, error) {
	status, err := i.AgentStatus()
	if err != nil {
		return process.Record{}, err
	}
	if status.PID == 0 {
		return process.Record{}, fmt.Errorf("the agent of instance %s is between two lives: %w", i.r.Name,
			process.ErrGone)
	}
	return process.Find(AgentProgram, status.PID)
}

// StopAgent stops the agent and the loop around it. Pods live on.
func (i *Instance) StopAgent(ctx context.Context) error {
	if i.Agent() == AgentNone {
		return fmt.Errorf("stop agent: instance %s has none", i.r.Name)
	}
	return i.stop(ctx, AgentProgram)
}

// StartAgent starts the agent after StopAgent. It does not wait for the node:
// see WaitNodeReady.
func (i *Instance) StartAgent(ctx context.Context) error {
	if i.Agent() == AgentNone {
		return fmt.Errorf("start agent: instance %s has none", i.r.Name)
	}
	if i.onMachine() {
		return i.start(ctx, AgentProgram)
	}
	// A status of the loop before would name a pid that is long gone.
	if err := os.Remove(i.agentStatusFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("start agent: %w", err)
	}
	if err := i.start(ctx, AgentProgram); err != nil {
		return err
	}
	return i.await(ctx, AgentProgram, func(context.Context) error {
		_, err := i.AgentStatus()
		return err
	})
}

// SwitchAgent stops the agent and starts another one on the same node, with
// the pods that run there: microlet may name no executable if the instance had
// a microlet before.
func (i *Instance) SwitchAgent(ctx context.Context, agent Agent, executable string, args ...string) error {
	if i.Agent() == AgentNone {
		return fmt.Errorf("switch agent: instance %s was made without one", i.r.Name)
	}
	if err := i.StopAgent(ctx); err != nil {
		return err
	}
	i.mu.Lock()
	switch agent {
	case AgentKubelet:
		if executable != "" {
			i.r.Binaries["kubelet"] = executable
		}
		if i.r.Binaries["kubelet"] == "" {
			i.mu.Unlock()
			return errors.New(
				"switch agent: the kubelet was not built: run rig build --with kubelet, and say where it is",
			)
		}
	case AgentMicrolet:
		if executable != "" {
			i.r.Microlet = executable
		}
		if i.r.Microlet == "" {
			i.mu.Unlock()
			return errors.New("switch agent: say where the microlet executable is")
		}
	default:
		i.mu.Unlock()
		return fmt.Errorf("switch agent: %q: use %s or %s", agent, AgentMicrolet, AgentKubelet)
	}
	i.r.Agent, i.r.AgentArgs = agent, args
	i.mu.Unlock()
	if i.onMachine() {
		if err := i.installAgent(ctx); err != nil {
			return err
		}
	}
	return i.StartAgent(ctx)
}

func (i *Instance) process(name string) process.Record {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.r.Processes[name]
}

func (i *Instance) stop(ctx context.Context, name string) error {
	if i.isUnit(name) {
		return i.stopUnit(ctx, name)
	}
	begin := time.Now()
	if err := i.process(name).Stop(ctx, grace[name]); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	i.printf("%s has ended after %s", name, time.Since(begin).Round(100*time.Millisecond))
	return nil
}
