package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// PowerOn starts the process and waits for systemd.
func (m *machine) PowerOn(ctx context.Context) error {
	if m.Running() {
		return fmt.Errorf("start machine %s: it runs already", m.r.Name)
	}
	if err := m.launch(ctx); err != nil {
		return fmt.Errorf("start machine %s: %w", m.r.Name, err)
	}
	if err := m.awaitBoot(ctx, ""); err != nil {
		cleanup := m.CutPower(context.WithoutCancel(ctx))
		return errors.Join(
			fmt.Errorf("start machine %s: %w; the end of its console:\n%s", m.r.Name, err, m.Console(20)), cleanup,
		)
	}
	return nil
}

// launch starts the process and records it.
func (m *machine) launch(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	boot, err := process.BootID()
	if err != nil {
		return err
	}
	if err := m.backend.prepare(ctx); err != nil {
		return err
	}
	p := m.backend.program()
	spec := process.Spec{
		Name: "machine " + m.r.Name, Path: p.path, Args: p.args, Env: p.env, Dir: m.dir, Log: m.consoleLog(),
		Cgroups: m.r.Cgroups, PIDNamespace: true, Pdeathsig: !m.r.Detached,
	}
	type result struct {
		p   process.Record
		err error
	}
	started := make(chan result, 1)
	go func() {
		// The thread is not unlocked, and so ends with this goroutine: it may be in another network namespace, and
		// the machine lives no longer than it.
		runtime.LockOSThread()
		var r result
		if m.r.Private {
			r.err = enterPrivate()
		}
		if r.err == nil {
			r.p, r.err = process.Start(spec)
		}
		started <- r
		if r.err == nil && spec.Pdeathsig {
			_ = r.p.Wait(context.Background())
		}
	}()
	r := <-started
	if r.err != nil {
		return r.err
	}
	m.r.BootID, m.r.Process = boot, r.p
	return m.r.save(m.dir)
}

// maxPatience bounds an attempt to reach a machine that starts.
const maxPatience = 20 * time.Second

// awaitBoot waits until a boot other than the one with that id has ended.
func (m *machine) awaitBoot(ctx context.Context, not string) error {
	ctx, cancel := context.WithTimeout(ctx, m.r.BootTimeout)
	defer cancel()
	const pause = 50 * time.Millisecond
	for patience := m.r.patience(); ; patience = min(patience+patience/4, maxPatience) {
		if !m.Running() {
			return fmt.Errorf("%w: it has ended while it started", ErrOff)
		}
		// The kernel repeats an unanswered connection attempt only after a second, so the first ones are short. A machine
		// that starts many pods on a busy host needs longer for the handshake alone.
		attempt, cancel := context.WithTimeout(ctx, patience)
		id, err := m.bootID(attempt)
		cancel()
		if err == nil && id != not {
			break
		}
		if err == nil {
			err = errors.New("it has not gone down yet")
		}
		m.shell.drop(nil)
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
	// Units that failed are not this package's business.
	if _, err := m.shell.run(ctx, Command{Args: []string{"systemctl", "is-system-running", "--wait"}}); err != nil {
		return fmt.Errorf("systemd does not end its start: %w", err)
	}
	return nil
}

func (m *machine) bootID(ctx context.Context) (string, error) {
	r, err := m.shell.ask(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("cat has ended with %d: %s", r.Code, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout)), err
}

func (m *machine) Reboot(ctx context.Context) error {
	id, err := m.bootID(ctx)
	if err != nil {
		return fmt.Errorf("reboot machine %s: %w", m.r.Name, err)
	}
	// In the background: the answer might not come, since the machine goes down with the connection. The bound is for
	// one that has hung before.
	bounded, cancel := context.WithTimeout(ctx, 10*m.r.patience())
	defer cancel()
	_, _ = m.shell.run(bounded, Command{Args: []string{"sh", "-c", "setsid -f systemctl reboot > /dev/null 2>&1"}})
	if err := m.awaitBoot(ctx, id); err != nil {
		return fmt.Errorf("reboot machine %s: %w; the end of its console:\n%s", m.r.Name, err, m.Console(20))
	}
	return nil
}

func (m *machine) CutPower(ctx context.Context) error {
	// This is the first process of a PID namespace, and all that it has started is in there.
	err := m.process().Stop(ctx, 0)
	m.shell.drop(nil)
	if err != nil {
		return fmt.Errorf("cut the power of machine %s: %w", m.r.Name, err)
	}
	return nil
}

func (m *machine) Close() error {
	if err := m.CutPower(context.Background()); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("remove machine %s: %w", m.r.Name, err)
	}
	return nil
}
