package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/microlet/microlet/compose/rig/machine/internal/qemu"
)

// qemuBackend is a virtual machine of QEMU's with Debian's own kernel.
type qemuBackend struct {
	dir string
	r   record
}

// modules are those of a node that are not loaded on demand: udev would load them for the devices that programs open,
// and the sysctls of the disk need that of the bridge.
const modules = "overlay,br_netfilter,fuse,loop,tun"

// restarter starts QEMU, and another one when the machine has restarted: the kernel says so last. QEMU could restart
// the machine itself, but without KVM it gets slower with each time, since it keeps what it has translated.
const restarter = `#!/bin/sh
while
	echo "machine: the power is on"
	%s "$@" && tail -n 1 console.log | grep -q 'reboot: Restarting system'
do :; done
`

func (q *qemuBackend) restarter() string { return filepath.Join(q.dir, "boot") }
func (q *qemuBackend) disk() string      { return filepath.Join(q.dir, "disk.qcow2") }

// prepare makes the machine's own disk, which has what is written, over the clean one.
func (q *qemuBackend) prepare(ctx context.Context) error {
	if err := os.WriteFile(q.restarter(), fmt.Appendf(nil, restarter, qemu.Program), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(q.disk()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	half := q.disk() + ".half"
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", q.r.Assets.Image,
		half)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the machine's disk: %w: %s", err, said)
	}
	return os.Rename(half, q.disk())
}

func (q *qemuBackend) program() program {
	a := q.r.Assets
	h := qemu.Hardware{
		Accel: qemu.Accel(a.Accel), Memory: q.r.Memory, CPUs: q.r.CPUs, Kernel: a.Kernel, Initrd: a.Initrd,
		Parameters: slices.Concat([]string{"modules_load=" + modules}, q.r.parameters()),
		Disk:       q.disk(), Modules: a.Modules, Tap: q.r.Link.Tap, MAC: q.mac(),
	}
	return program{path: q.restarter(), args: h.Args()}
}

// mac is the address of the machine's link: its own, and the same after each start.
func (q *qemuBackend) mac() string {
	return fmt.Sprintf("52:54:00:%s:%s:%s", q.r.ID[:2], q.r.ID[2:4], q.r.ID[4:6])
}
