package machine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// machine is a machine of any kind.
type machine struct {
	dir     string
	backend backend
	shell   *shell

	mu sync.Mutex // guards what changes of r: the process
	r  record
}

var _ Machine = (*machine)(nil)

// Start starts a new machine and returns when its systemd has started all. When that fails, only the folder with the
// console's log is left. The end of the log is also in the error.
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
		Name: o.Name, ID: hex.EncodeToString(id), Assets: o.Assets, Memory: o.Memory, CPUs: o.CPUs,
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
		const answers = 600 // enough for a working machine to start, on a busy host too
		r.BootTimeout = answers * r.patience()
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
	if same, err := process.IsBoot(r.BootID); err != nil {
		return nil, err
	} else if !same {
		r.Process = process.Record{}
	}
	return attach(dir, r)
}

func attach(dir string, r record) (*machine, error) {
	b, err := backendOf(dir, r)
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir, backend: b, r: r}
	address := net.JoinHostPort(r.Link.Address.Addr().String(), "22")
	m.shell, err = newShell(r, address, func(ctx context.Context) (net.Conn, error) {
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

func (m *machine) process() process.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r.Process
}

func (m *machine) Kind() Kind          { return m.r.Assets.kind() }
func (m *machine) Address() netip.Addr { return m.r.Link.Address.Addr() }
func (m *machine) Running() bool       { return m.process().Alive() }

func (m *machine) PID() int { return m.process().PID }

func (m *machine) consoleLog() string       { return filepath.Join(m.dir, "console.log") }
func (m *machine) Console(lines int) string { return process.Tail(m.consoleLog(), lines) }
