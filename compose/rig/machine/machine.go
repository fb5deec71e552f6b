package machine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"time"
)

// Machine is a running or switched-off machine. Its methods may be called from several goroutines.
type Machine interface {
	// Kind is what the machine is made of.
	Kind() Kind
	// Address of the machine's link.
	Address() netip.Addr
	// Run runs a command as root and returns what it wrote and its exit code, which is no error. When the context
	// ends, the command is killed. The error is of the way there: the machine is off, or does not answer.
	Run(ctx context.Context, c Command) (Result, error)
	// CopyIn puts a file, or a folder with all that is in it, of this machine into the other one, with the file's
	// mode. It replaces a file in one step and makes the folders above it. What is there then outlives a power cut.
	CopyIn(ctx context.Context, from, to string) error
	// CopyOut is CopyIn the other way round.
	CopyOut(ctx context.Context, from, to string) error
	// Write puts a file of this content into the machine.
	Write(ctx context.Context, to string, text []byte, mode fs.FileMode) error
	// Reboot has the machine's systemd restart it, and returns when it is up again. The disk stays as it is.
	Reboot(ctx context.Context) error
	// CutPower ends the machine at once. What it had not written to its disk is lost.
	CutPower(ctx context.Context) error
	// PowerOn starts a machine after a power cut or after it has switched itself off, from its disk as it is, and returns
	// when it is up.
	PowerOn(ctx context.Context) error
	// Dial connects to an address (tcp) or a socket (unix) as a process in the machine would.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// PID of the process, on this machine, with which the machine ends.
	PID() int
	// Running reports whether the machine has power.
	Running() bool
	// Console returns the last lines of what the kernel and systemd have said.
	Console(lines int) string
	// Close cuts the power and removes the machine's folder.
	Close() error
}

// Kind is what a machine is made of.
type Kind string

// KindUML is User-Mode Linux, KindQEMU a virtual machine of QEMU's.
const (
	KindUML  Kind = "uml"
	KindQEMU Kind = "qemu"
)

// Options say what Start shall start.
type Options struct {
	// Dir is the machine's folder, which Close removes. It must not exist. Unix sockets limit its length to 80 bytes.
	Dir string
	// Name is the machine's host name. Default: machine.
	Name string
	// Assets are the kernel and the disk, and with them the kind of the machine; see Build.
	Assets Assets
	// Memory in MiB. It is taken as the machine uses it; User-Mode Linux takes it from /dev/shm. Default: 2048.
	Memory int
	// CPUs of the machine. In User-Mode Linux threads of one process take turns on one. Default: 2.
	CPUs int
	// Link joins the machine to a network. Default: a network namespace of the machine's own, which contains only the two
	// ends of the link. It goes with the machine.
	Link *Link
	// Detached lets the machine outlive its caller; Open finds it again.
	Detached bool
	// Cgroups are the cgroup.procs files of the cgroups in which the machine's processes shall be.
	Cgroups []string
	// BootTimeout bounds the time from power to the end of systemd's start. Default: 5 min, some sixty times what it
	// takes on an idle machine, and 50 min for QEMU without KVM.
	BootTimeout time.Duration
}

// Link joins a machine to a tap device of this machine's, which exists and stays.
type Link struct {
	Tap     string       `json:"tap"`
	Address netip.Prefix `json:"address"` // the machine's, with the network's length
	Gateway netip.Addr   `json:"gateway"` // where the machine sends what is not for that network
}

// Command is a command in the machine.
type Command struct {
	// Args are the program and its arguments. No shell sees them.
	Args []string
	// Input is what the command reads from its standard input. Default: nothing.
	Input io.Reader
	// Output gets the standard output as it comes, in place of Result.Stdout.
	Output io.Writer
}

// Result of a command that has ended.
type Result struct {
	Stdout, Stderr []byte
	// Code is the exit code; 128 and the signal's number for a command that a signal killed, as a shell has it.
	Code int
}

// ErrOff says that the machine has no power.
var ErrOff = errors.New("the machine is off")
