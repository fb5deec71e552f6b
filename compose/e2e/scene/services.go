package scene

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// ProgramPID is the pid of a program of the rig.
func (n *Node) ProgramPID(name string) int {
	for _, p := range n.Status(context.Background()) {
		if p.Program == name && p.Running {
			return p.PID
		}
	}
	return 0
}

// Services are those of a node as it is now, in start order, without their supervisor.
var Services = []role.Role{role.Bus, role.Podsync, role.PLEG, role.Prober, role.NodeStatus, role.ImageGC, role.Stats,
	role.Evictor, role.NodeAPI}

// ProcessStatus is what "microlet status -o json" shows of a process.
type ProcessStatus struct {
	Service  string `json:"service"`
	State    string `json:"state"`
	PID      int    `json:"pid"`
	Restarts int    `json:"restarts"`
	LastExit string `json:"lastExit"`
	// Group is the process, if it holds other services too.
	Group string `json:"group"`
}

// ProcessStatuses asks "microlet status".
func (n *Node) ProcessStatuses(ctx context.Context) (map[role.Role]ProcessStatus, error) {
	out, err := n.askStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("microlet status: %w", err)
	}
	var answer struct {
		PID       int             `json:"pid"`
		Processes []ProcessStatus `json:"processes"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("microlet status: %w", err)
	}
	all := map[role.Role]ProcessStatus{role.Up: {Service: string(role.Up), PID: answer.PID, State: "ready"}}
	for _, a := range answer.Processes {
		all[role.Role(a.Service)] = a
	}
	return all, nil
}

func (n *Node) askStatus(ctx context.Context) ([]byte, error) {
	args := []string{"status", "--runtime-dir=" + n.RuntimeDir(), "-o", "json"}
	if n.OnMachine() {
		out, err := n.RunOnMachine(ctx, append([]string{"microlet"}, args...)...)
		return []byte(out), err
	}
	out, err := exec.CommandContext(ctx, n.Executable, args...).Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr(err))
	}
	return out, err
}

func stderr(err error) string {
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}

// PID finds a service's process among the supervisor's children, by asking the kernel; 0 if there is none.
// Of several replicas it is the first's.
func (n *Node) PID(r role.Role) int {
	up, err := n.AgentPID()
	if err != nil {
		return 0
	}
	if r == role.Up || slices.Contains(Current.Args, SinglePlacement) {
		return up
	}
	if n.OnMachine() {
		return n.pidThere(up, r)
	}
	children, err := machine.Children(up)
	if err != nil {
		return 0
	}
	for _, c := range children {
		if a := machine.Arguments(c); len(a) > 1 && holds(a[1:], r) && machine.Alive(c) {
			return c
		}
	}
	return 0
}

// holds reports whether a command line of microlet is that of a process with the service's first replica.
func holds(args []string, r role.Role) bool {
	if len(args) > 1 && args[0] == "group" {
		return slices.Contains(strings.Split(args[1], "+"), string(r))
	}
	return args[0] == string(r) && slices.Contains(args, "--replica=0")
}

// CommandOf is what the command line of the process has that a service runs in.
func CommandOf(r role.Role) string {
	if slices.Contains(Current.Args, SinglePlacement) {
		return SinglePlacement
	}
	return string(r)
}

// SignalPIDs sends a signal to processes of the node, at once.
func (n *Node) SignalPIDs(sig syscall.Signal, pids ...int) error {
	if n.OnMachine() {
		return n.killThere(sig, pids...)
	}
	var errs []error
	for _, pid := range pids {
		errs = append(errs, syscall.Kill(pid, sig))
	}
	return errors.Join(errs...)
}

// MustPID is pid of a service that must run.
func (n *Node) MustPID(t *testing.T, r role.Role) int {
	t.Helper()
	pid := n.PID(r)
	if pid == 0 {
		t.Fatalf("%s does not run", r)
	}
	return pid
}

// AgentCgroup is the cgroup of the node agent as the kernel names it: the first hierarchy in which it has one.
func (s *Scene) AgentCgroup() string {
	s.T.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(s.MustPID(s.T, role.Up)) + "/cgroup")
	if err != nil {
		s.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[2] != "/" {
			return fields[2]
		}
	}
	s.T.Fatal("the node agent is in no cgroup of its own")
	return ""
}

// isExternal reports whether something else than the supervisor starts a service.
func isExternal(r role.Role) bool {
	for _, arg := range Current.Args {
		if list, ok := strings.CutPrefix(arg, "--external="); ok && slices.Contains(strings.Split(list, ","), string(r)) {
			return true
		}
	}
	return false
}

// Healthy returns nil when all services are ready and the kernel knows the same processes. In the single placement the
// services are one process. A service that something else starts may be away.
func (n *Node) Healthy(ctx context.Context) error {
	all, err := n.ProcessStatuses(ctx)
	if err != nil {
		return err
	}
	for _, r := range append([]role.Role{role.Up}, Services...) {
		if isExternal(r) {
			continue
		}
		a := all[r]
		if a.State != "ready" {
			return fmt.Errorf("%s is %q, last exit %q", r, a.State, a.LastExit)
		}
		if pid := n.PID(r); pid != a.PID {
			return fmt.Errorf("%s has pid %d by microlet status, and %d by /proc", r, a.PID, pid)
		}
	}
	return nil
}

// WaitHealthy waits for all services.
func (n *Node) WaitHealthy(t *testing.T, patience time.Duration) {
	t.Helper()
	Await(t, patience, "all services ready", func() error { return n.Healthy(t.Context()) })
}

// Signal sends a signal to services, as fast as it can.
func (n *Node) Signal(t *testing.T, sig syscall.Signal, roles ...role.Role) {
	t.Helper()
	pids := make([]int, len(roles))
	for i, r := range roles {
		pids[i] = n.MustPID(t, r)
	}
	if err := n.SignalPIDs(sig, pids...); err != nil && !slices.Contains(roles, role.Up) { // children die with up
		t.Fatalf("%v to %v: %v", sig, roles, err)
	}
}

// UseMicrolet makes microlet the node's agent, with these arguments, until the test ends; then it is as it
// was. All services are ready when it returns.
func (n *Node) UseMicrolet(t *testing.T, args ...string) {
	t.Helper()
	n.SwitchTo(t, rig.AgentMicrolet, args...)
	if len(args) > 0 {
		t.Cleanup(func() { n.SwitchTo(t, rig.AgentMicrolet) })
	}
}

// Current are the agent and arguments that run.
var Current struct {
	Agent rig.Agent
	Args  []string
}

// SwitchTo makes an agent the node's, with these arguments, and waits until the node is Ready. Nothing happens if it
// runs already.
func (n *Node) SwitchTo(t *testing.T, agent rig.Agent, args ...string) {
	t.Helper()
	n.EnsureUp(t)
	if Current.Agent == "" {
		Current.Agent = FirstAgent
	}
	isPlaced := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--placement=") })
	if agent == rig.AgentMicrolet && Placement != "" && !isPlaced {
		args = append([]string{"--placement=" + Placement}, args...)
	}
	ctx := context.WithoutCancel(t.Context()) // it is used in clean-ups too
	if Current.Agent != agent || !slices.Equal(Current.Args, args) {
		executable := ""
		if agent == rig.AgentMicrolet {
			executable = n.Executable
		}
		if err := n.SwitchAgent(ctx, agent, executable, args...); err != nil {
			t.Fatalf("switch to %s %v: %v", agent, args, err)
		}
		Current.Agent, Current.Args = agent, args
		if err := n.WaitNodeReady(ctx); err != nil {
			t.Fatalf("%s %v: %v", agent, args, err)
		}
	}
	if agent == rig.AgentMicrolet {
		Await(t, Patience, "all services ready", func() error { return n.Healthy(ctx) })
	}
}

// Placement is that of every microlet of the run; empty is the default of microlet up. TestSingle and TestPlacements
// have their own.
var Placement = os.Getenv("MICROLET_PLACEMENT")

// Arguments of microlet up.
const (
	SinglePlacement    = "--placement=single"
	CompactPlacement   = "--placement=compact"
	ProcessesPlacement = "--placement=processes"
	WatchdogOff        = "--watchdog=off"
)

// Await polls, to wait and never to judge.
func Await(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain for %s: %v", patience, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
