package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/machine"
)

// place is where a suite's program runs, and what it finds there.
type place interface {
	// dir is the folder of the run. Programs that the suite finds before the place's own are in its folder bin.
	dir() string
	// program brings an executable of this machine into the folder.
	program(ctx context.Context, from, name string) error
	// write writes a file, which may be outside of the folder.
	write(ctx context.Context, path string, text []byte, mode fs.FileMode) error
	// link makes a link in the folder.
	link(ctx context.Context, target, name string) error
	// serve gives the suite of the node the agent's unit and ports, where it looks for them, until end is called.
	serve(ctx context.Context) (end func(), err error)
	// run runs a command in the folder and returns its exit code. It is interrupted when the context ends.
	run(ctx context.Context, args []string, out io.Writer) (code int, err error)
	// collect brings files of the folder that there are into a folder of this machine.
	collect(ctx context.Context, to string, names ...string) error
}

// placeOf is where the suite runs: beside its node, and the suite of a cluster here.
func (r Run) placeOf() (place, error) {
	if !r.Suite.OnNode || !r.Suite.OnMachine {
		return &here{folder: r.Dir, instance: r.Instance}, nil
	}
	m, err := r.Instance.Machine()
	if err != nil {
		return nil, err
	}
	return &there{rig.SuiteDir, m}, nil
}

// here is this machine.
type here struct {
	folder   string
	instance *rig.Instance
}

func (h *here) dir() string { return h.folder }

func (h *here) program(ctx context.Context, from, name string) error { return h.link(ctx, from, name) }

func (h *here) write(_ context.Context, path string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, mode)
}

func (h *here) link(_ context.Context, target, name string) error {
	return os.Symlink(target, filepath.Join(h.folder, name))
}

// serve stands in for systemd, which this machine need not run, and for the ports of a kubelet.
func (h *here) serve(ctx context.Context) (end func(), err error) {
	endUnit, err := serveUnit(ctx, h.instance, filepath.Join(h.folder, "bin"))
	if err != nil {
		return nil, err
	}
	readOnly := strconv.Itoa(rig.ReadOnlyPort)
	endForwards, err := forwardAll(ctx, map[string]string{
		net.JoinHostPort("127.0.0.1", readOnly): net.JoinHostPort(h.instance.NodeIP(), readOnly),
		"127.0.0.1:10248":                       h.instance.HealthAddress(), // the kubelet's default, as healthzPort
	})
	if err != nil {
		endUnit()
		return nil, err
	}
	if err := h.link(ctx, h.instance.Log(rig.AgentProgram), agentLog); err != nil {
		endForwards()
		endUnit()
		return nil, err
	}
	return func() { endForwards(); endUnit() }, nil
}

// run gives ginkgo the interrupt that ends ctx, so that specs clean up.
func (h *here) run(ctx context.Context, args []string, out io.Writer) (int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = h.folder
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Join(h.folder, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to pass on, once
	// Ginkgo relies on the terminal to interrupt the specs too.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// collect has nothing to do.
func (h *here) collect(context.Context, string, ...string) error { return nil }

// there is the node's own machine. It has all that the suite of the node takes for granted.
type there struct {
	folder  string
	machine machine.Machine
}

func (t *there) dir() string { return t.folder }

func (t *there) program(ctx context.Context, from, name string) error {
	return t.machine.CopyIn(ctx, from, path.Join(t.folder, name))
}

func (t *there) write(ctx context.Context, path string, text []byte, mode fs.FileMode) error {
	return t.machine.Write(ctx, path, text, mode)
}

func (t *there) link(ctx context.Context, target, name string) error {
	code, err := t.run(ctx, []string{"ln", "-s", target, name}, io.Discard)
	if err == nil && code != 0 {
		err = fmt.Errorf("link %s to %s: ln has ended with %d", name, target, code)
	}
	return err
}

// serve lets the suite find the agent's log, which is the journal's.
func (t *there) serve(ctx context.Context) (end func(), err error) {
	if err := t.write(ctx, path.Join(t.folder, "bin/sudo"), []byte(sudo), 0o755); err != nil {
		return nil, err
	}
	const unit = "suite-log"
	code, err := t.run(ctx, []string{
		"systemd-run", "--quiet", "--collect", "--unit=" + unit,
		"-p", "StandardOutput=append:" + path.Join(t.folder, agentLog),
		"journalctl", "--follow", "--lines=all", "--output=cat", "--unit=" + rig.SuiteUnit,
	}, io.Discard)
	if err == nil && code != 0 {
		err = fmt.Errorf("follow the agent's log: systemd-run has ended with %d", code)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, _ = t.run(stop, []string{"systemctl", "stop", unit}, io.Discard)
	}, nil
}

// run has the machine's shell bring both outputs together, in their order.
func (t *there) run(ctx context.Context, args []string, out io.Writer) (int, error) {
	const script = `cd "$1" && PATH="$1/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" && shift && ` +
		`exec "$@" 2>&1`
	r, err := t.machine.Run(ctx, machine.Command{
		Args:   append([]string{"sh", "-c", script, "suite", t.folder}, args...),
		Output: out,
	})
	return r.Code, err
}

func (t *there) collect(ctx context.Context, to string, names ...string) error {
	var problems []error
	for _, name := range names {
		code, err := t.run(ctx, []string{"test", "-e", name}, io.Discard)
		if err == nil && code == 0 {
			err = t.machine.CopyOut(ctx, path.Join(t.folder, name), filepath.Join(to, name))
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
