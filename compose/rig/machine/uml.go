package machine

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// uml is a machine of User-Mode Linux.
type uml struct {
	dir   string
	shell *shell

	mu sync.Mutex // guards what changes of r: the process
	r  record
}

var _ Machine = (*uml)(nil)

// Start starts a new machine and returns when its systemd has started all. When that fails nothing is left but the
// folder, with the console's log, whose end is also in the error.
func Start(ctx context.Context, o Options) (Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start a machine: it needs root")
	}
	const longest = 80
	if !filepath.IsAbs(o.Dir) || len(o.Dir) > longest {
		return nil, fmt.Errorf("start a machine: folder %q: use an absolute path of at most %d bytes", o.Dir, longest)
	}
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o755); err != nil {
		return nil, fmt.Errorf("start a machine: %w", err)
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start a machine: %w", err)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	r := record{
		Kind: KindUML, Name: o.Name, ID: hex.EncodeToString(id), Assets: o.Assets, Memory: o.Memory, CPUs: o.CPUs,
		Detached: o.Detached, Cgroups: o.Cgroups, BootTimeout: o.BootTimeout,
	}
	if r.Name == "" {
		r.Name = "machine"
	}
	if r.Memory == 0 {
		r.Memory = 2048
	}
	if r.CPUs == 0 {
		r.CPUs = 2
	}
	if r.BootTimeout == 0 {
		r.BootTimeout = 2 * time.Minute
	}
	if o.Link != nil {
		r.Link = *o.Link
	} else {
		r.Link, r.Private = Link{Tap: privateTap, Address: privateAddress, Gateway: privateGateway}, true
	}
	m, err := attach(o.Dir, r)
	if err != nil {
		return nil, err
	}
	if err := m.PowerOn(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Open returns a machine that was started before with Options.Detached, by whatever process.
func Open(dir string) (Machine, error) {
	r, err := load(dir)
	if err != nil {
		return nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	if r.BootID != boot {
		r.Process = process.Record{}
	}
	return attach(dir, r)
}

func attach(dir string, r record) (*uml, error) {
	m := &uml{dir: dir, r: r}
	address := net.JoinHostPort(r.Link.Address.Addr().String(), "22")
	var err error
	m.shell, err = newShell(r.Assets, address, func(ctx context.Context) (net.Conn, error) {
		p := m.process()
		if !p.Alive() {
			return nil, ErrOff
		}
		if !r.Private {
			p.PID = 0
		}
		return dial(ctx, p.PID, address)
	})
	return m, err
}

func (m *uml) process() process.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r.Process
}

func (m *uml) Kind() Kind          { return KindUML }
func (m *uml) Address() netip.Addr { return m.r.Link.Address.Addr() }
func (m *uml) Running() bool       { return m.process().Alive() }

func (m *uml) PID() int { return m.process().PID }

func (m *uml) consoleLog() string       { return filepath.Join(m.dir, "console.log") }
func (m *uml) Console(lines int) string { return process.Tail(m.consoleLog(), lines) }

// rebooter starts the kernel under its own name. For a reboot, User-Mode Linux becomes the program of the name by which
// it was called, with all that it has open: its memory, its link, its disk. The function is read in whole before it
// closes the file from which it comes.
const rebooter = `#!/bin/bash
boot() {
	for fd in /proc/self/fd/*; do
		fd=${fd##*/}
		[ "$fd" -le 2 ] || eval "exec $fd>&-"
	done
	exec -a "$0" %s "$@"
}
boot "$@"
`

// umid is the folder in which User-Mode Linux keeps its process number.
const umid = "uml"

func (m *uml) rebooter() string { return filepath.Join(m.dir, "boot") }

// args is the kernel's command line, which is the program's too.
func (m *uml) args() []string {
	return []string{
		// Programs run without ptrace, by a filter that hands their system calls over.
		"seccomp=on", fmt.Sprintf("mem=%dM", m.r.Memory), fmt.Sprintf("ncpus=%d", m.r.CPUs),
		// What is written goes to the first file, which is made when it is not there.
		"ubd0=" + filepath.Join(m.dir, "disk.cow") + "," + m.r.Assets.Image, "root=/dev/ubda", "rw", "rootfstype=ext4",
		"con=null", "con0=null,fd:1", "ssl=null", "uml_dir=" + m.dir + "/", "umid=" + umid,
		"vec0:transport=tap,ifname=" + m.r.Link.Tap + ",depth=128,gro=1",
		"machine.address=" + m.r.Link.Address.String(), "machine.gateway=" + m.r.Link.Gateway.String(),
		"systemd.hostname=" + m.r.Name, "systemd.machine_id=" + m.r.ID, "panic=-1",
		// A panic ends the process, and so is seen at once.
		"mitigations=off", "quiet", "systemd.show_status=0",
	}
}

// PowerOn starts the process and waits for systemd.
func (m *uml) PowerOn(ctx context.Context) error {
	if m.Running() {
		return fmt.Errorf("start machine %s: it runs already", m.r.Name)
	}
	if err := m.launch(); err != nil {
		return fmt.Errorf("start machine %s: %w", m.r.Name, err)
	}
	if err := m.awaitBoot(ctx, ""); err != nil {
		cleanup := m.CutPower(context.WithoutCancel(ctx))
		return errors.Join(fmt.Errorf("start machine %s: %w; the end of its console:\n%s", m.r.Name, err, m.Console(20)), cleanup)
	}
	return nil
}

// launch starts the process and records it.
func (m *uml) launch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	boot, err := process.BootID()
	if err != nil {
		return err
	}
	// A boot whose power was cut has left its folder, which the next one would take for that of a live machine.
	if err := os.RemoveAll(filepath.Join(m.dir, umid)); err != nil {
		return err
	}
	if err := os.WriteFile(m.rebooter(), fmt.Appendf(nil, rebooter, quote([]string{m.r.Assets.Kernel})), 0o700); err != nil {
		return err
	}
	spec := process.Spec{
		Name: "machine " + m.r.Name, Path: m.rebooter(), Args: m.args(), Dir: m.dir, Log: m.consoleLog(), Cgroups: m.r.Cgroups,
		// The machine's memory is a file there that has no name.
		Env: []string{"TMPDIR=/dev/shm"}, PIDNamespace: true, Pdeathsig: !m.r.Detached,
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

// awaitBoot waits until a boot other than the one with that id has ended.
func (m *uml) awaitBoot(ctx context.Context, not string) error {
	ctx, cancel := context.WithTimeout(ctx, m.r.BootTimeout)
	defer cancel()
	const pause = 50 * time.Millisecond
	for {
		if !m.Running() {
			return fmt.Errorf("%w: it has ended while it started", ErrOff)
		}
		// A connection attempt that nobody answers is tried again by the kernel only after a second.
		attempt, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
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

func (m *uml) bootID(ctx context.Context) (string, error) {
	r, err := m.shell.run(ctx, Command{Args: []string{"cat", "/proc/sys/kernel/random/boot_id"}})
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("cat has ended with %d: %s", r.Code, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout)), err
}

func (m *uml) Run(ctx context.Context, c Command) (Result, error) {
	r, err := m.shell.run(ctx, c)
	if err != nil && ctx.Err() == nil && !m.Running() {
		err = fmt.Errorf("%w (%w); the end of its console:\n%s", ErrOff, err, m.Console(20))
	}
	if err != nil {
		return r, fmt.Errorf("run %s in machine %s: %w", path.Base(c.Args[0]), m.r.Name, err)
	}
	return r, nil
}

func (m *uml) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	client, err := m.shell.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s in machine %s: %w", address, m.r.Name, err)
	}
	conn, err := client.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s in machine %s: %w", address, m.r.Name, err)
	}
	return conn, nil
}

func (m *uml) Reboot(ctx context.Context) error {
	id, err := m.bootID(ctx)
	if err != nil {
		return fmt.Errorf("reboot machine %s: %w", m.r.Name, err)
	}
	// The connection may end before the answer comes.
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, _ = m.shell.run(bounded, Command{Args: []string{"systemctl", "reboot"}})
	if err := m.awaitBoot(ctx, id); err != nil {
		return fmt.Errorf("reboot machine %s: %w; the end of its console:\n%s", m.r.Name, err, m.Console(20))
	}
	return nil
}

func (m *uml) CutPower(ctx context.Context) error {
	// All that it has started is in the PID namespace whose first process this is.
	err := m.process().Stop(ctx, 0)
	m.shell.drop(nil)
	if err != nil {
		return fmt.Errorf("cut the power of machine %s: %w", m.r.Name, err)
	}
	return nil
}

func (m *uml) Close() error {
	if err := m.CutPower(context.Background()); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("remove machine %s: %w", m.r.Name, err)
	}
	return nil
}

// must runs a command whose exit code has to be 0.
func (m *uml) must(ctx context.Context, c Command) (Result, error) {
	r, err := m.Run(ctx, c)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("%s has ended with %d: %s", strings.Join(c.Args, " "), r.Code, bytes.TrimSpace(r.Stderr))
	}
	return r, err
}

func (m *uml) Write(ctx context.Context, to string, text []byte, mode fs.FileMode) error {
	_, err := m.must(ctx, Command{Args: install(to, mode), Input: bytes.NewReader(text)})
	if err != nil {
		return fmt.Errorf("write %s into machine %s: %w", to, m.r.Name, err)
	}
	return nil
}

// install writes a file from the standard input: beside its place first, so that whoever reads or runs it never has
// half of it, and on the disk, as a package manager does: a power cut leaves it there.
func install(to string, mode fs.FileMode) []string {
	const script = `mkdir -p "${1%/*}/" && cat > "$1.half" && chmod "$2" "$1.half" && mv -T "$1.half" "$1" && sync -f "$1"`
	return []string{"sh", "-c", script, "install", to, fmt.Sprintf("%o", mode.Perm())}
}

func (m *uml) CopyIn(ctx context.Context, from, to string) error {
	if err := m.copyIn(ctx, from, to); err != nil {
		return fmt.Errorf("copy %s into machine %s: %w", from, m.r.Name, err)
	}
	return nil
}

func (m *uml) copyIn(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		_, err = m.must(ctx, Command{Args: install(to, info.Mode()), Input: f})
		return err
	}
	pack := exec.CommandContext(ctx, "tar", "-C", from, "-cf", "-", ".")
	var said bytes.Buffer
	pack.Stderr = &said
	out, err := pack.StdoutPipe()
	if err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	_, err = m.must(ctx, Command{Args: []string{"sh", "-c", `mkdir -p "$1" && tar -C "$1" -xf - && sync -f "$1"`, "unpack", to}, Input: out})
	_ = out.Close() // if nobody reads the rest, tar shall end
	if packErr := pack.Wait(); err == nil && packErr != nil {
		err = fmt.Errorf("%w: %s", packErr, said.String())
	}
	return err
}

func (m *uml) CopyOut(ctx context.Context, from, to string) error {
	if err := m.copyOut(ctx, from, to); err != nil {
		return fmt.Errorf("copy %s out of machine %s: %w", from, m.r.Name, err)
	}
	return nil
}

func (m *uml) copyOut(ctx context.Context, from, to string) error {
	r, err := m.must(ctx, Command{Args: []string{"stat", "-L", "-c", "%a %F", from}})
	if err != nil {
		return err
	}
	var mode fs.FileMode
	var kind string
	if _, err := fmt.Sscanf(string(r.Stdout), "%o %s", &mode, &kind); err != nil {
		return fmt.Errorf("understand %q: %w", r.Stdout, err)
	}
	if kind == "directory" {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		return m.unpack(ctx, from, to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to+".half", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = m.must(ctx, Command{Args: []string{"cat", from}, Output: f})
	if err := errors.Join(err, f.Chmod(mode.Perm()), f.Close()); err != nil {
		return errors.Join(err, os.Remove(to+".half"))
	}
	return os.Rename(to+".half", to)
}

// unpack copies what is in a folder of the machine's.
func (m *uml) unpack(ctx context.Context, from, to string) error {
	cmd := exec.CommandContext(ctx, "tar", "-C", to, "-xf", "-")
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = m.must(ctx, Command{Args: []string{"tar", "-C", from, "-cf", "-", "."}, Output: in})
	_ = in.Close()
	if tarErr := cmd.Wait(); err == nil && tarErr != nil {
		err = fmt.Errorf("%w: %s", tarErr, said.String())
	}
	return err
}
