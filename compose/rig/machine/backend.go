package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/microlet/microlet/compose/rig/machine/internal/qemu"
)

// backend is what the kinds of machines differ in. All else is machine's: a reboot is systemd's matter, and the end of
// the process cuts the power.
type backend interface {
	// prepare puts into the machine's folder what a start needs and does not find there.
	prepare(ctx context.Context) error
	// program is what is started. It runs as long as the machine has power, through reboots too, and what it writes is
	// the console.
	program() program
}

// program is an executable with its arguments, and what its environment has beyond this process's.
type program struct {
	path      string
	args, env []string
}

func backendOf(dir string, r record) (backend, error) {
	switch r.Assets.kind() {
	case KindUML:
		return &uml{dir: dir, r: r}, nil
	case KindQEMU:
		return &qemuBackend{dir: dir, r: r}, nil
	default:
		return nil, fmt.Errorf("there is no machine of kind %q", r.Assets.Kind)
	}
}

// patience is how long a machine that works may take for a simple answer, such as that to a connection attempt.
func (r record) patience() time.Duration {
	if r.Assets.Accel == string(qemu.TCG) {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// parameters are the command line of any machine's kernel: who it is, for systemd and for the disk's machine-net.
func (r record) parameters() []string {
	return []string{
		"machine.address=" + r.Link.Address.String(), "machine.gateway=" + r.Link.Gateway.String(),
		"systemd.hostname=" + r.Name, "systemd.machine_id=" + r.ID, "mitigations=off", "quiet", "systemd.show_status=0",
	}
}
