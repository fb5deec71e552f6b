package qemu

import (
	"fmt"
	"strings"
)

// Program is QEMU's executable.
const Program = "qemu-system-x86_64"

// Accel is how QEMU runs the machine's instructions.
type Accel string

// KVM has the CPU run them; TCG translates them, which works everywhere and takes some ten times as long.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// Hardware is a machine as QEMU starts it.
type Hardware struct {
	Accel      Accel
	Memory     int // MiB
	CPUs       int
	Kernel     string
	Initrd     string
	Parameters []string // the kernel's, beyond that for the console
	Disk       string   // qcow2, the first disk; "" for none
	Modules    string   // raw, the second disk, which is only read
	Tap        string   // "" for none
	MAC        string
}

// Args is the command line. QEMU writes the console to its standard output, and ends when the machine switches itself
// off, restarts, or has a kernel that panics.
func (h Hardware) Args() []string {
	// All that can be translated, but for what costs the translator time: a fifth level of page tables, and copies byte
	// by byte.
	cpu := "max,la57=off,erms=off,fsrm=off"
	if h.Accel == KVM {
		cpu = "host"
	}
	args := []string{
		"-no-user-config", "-nodefaults", "-display", "none", "-sandbox", "on,spawn=deny",
		"-machine", "q35,usb=off", "-accel", string(h.Accel), "-cpu", cpu,
		"-smp", fmt.Sprint(h.CPUs), "-m", fmt.Sprintf("%dM", h.Memory),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-rng-pci", "-device", "pvpanic-pci", "-action", "reboot=shutdown,panic=shutdown",
		"-kernel", h.Kernel, "-initrd", h.Initrd,
		"-append", strings.Join(append([]string{"console=ttyS0"}, h.Parameters...), " "),
	}
	if h.Disk != "" {
		args = append(args,
			// The machine learns that the disk has a cache of its own, and flushes it to have something kept. QEMU
			// keeps until then in its memory where in the file new data are: they are lost with the process, as those
			// in the cache of a real disk are with the power. The clean disk below is only read: a lock of it would be
			// in the way of User-Mode Linux, which locks it in a way of its own.
			"-drive", "if=none,id=disk,format=qcow2,cache=writeback,discard=unmap,backing.file.locking=off,file="+
				escape(h.Disk),
			"-device", "virtio-blk-pci,drive=disk,write-cache=on",
			"-drive", "if=none,id=modules,format=raw,readonly=on,file="+escape(h.Modules),
			"-device", "virtio-blk-pci,drive=modules",
		)
	}
	if h.Tap != "" {
		args = append(args,
			"-netdev", "tap,id=link,script=no,downscript=no,ifname="+h.Tap, "-device",
			"virtio-net-pci,netdev=link,mac="+h.MAC)
	}
	return args
}

// escape writes a value for one of QEMU's lists, whose entries are separated by commas.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
