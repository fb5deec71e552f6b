package build

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// need is something of the operating system, and the Debian package that has
// it. It is looked for, not the package: another distribution has it under
// another name.
type need struct {
	what    string
	pkg     string
	present func() bool
}

func needs(groups []string) []need {
	command := func(name string) func() bool {
		return func() bool { _, err := exec.LookPath(name); return err == nil }
	}
	file := func(paths ...string) func() bool {
		return func() bool {
			for _, p := range paths {
				if exists(p) {
					return true
				}
			}
			return false
		}
	}
	all := []need{
		{"a C compiler (runc and the pause image)", "gcc", command("gcc")},
		{"the C library's headers and static archive", "libc6-dev", file("/usr/include/stdlib.h")},
		{"pkg-config (runc)", "pkg-config", command("pkg-config")},
		{"libseccomp's headers (runc)", "libseccomp-dev", file("/usr/include/seccomp.h")},
		{"a static busybox (the images)", "busybox-static", func() bool { return Busybox() != "" }},
		{"iptables", "iptables", command("iptables")},
		{"dbus-daemon (the tests of services)", "dbus-daemon", command("dbus-daemon")},
		{"mount and umount", "mount", command("mount")},
		{"mkfs.ext4 (filesystems to fill, and the machine's disk)", "e2fsprogs", command("mkfs.ext4")},
		{"mkfs.btrfs (the tests of filesystems)", "btrfs-progs", command("mkfs.btrfs")},
	}
	if slices.Contains(groups, GroupConformance) || slices.Contains(groups, GroupNodeConformance) {
		all = append(all,
			need{"debootstrap (the base system of the suite's images)", "debootstrap", command("debootstrap")},
			need{"the keys of Debian's archive", "debian-archive-keyring",
				file("/usr/share/keyrings/debian-archive-keyring.gpg")},
		)
	}
	if slices.Contains(groups, GroupCompose) {
		all = append(all, need{"a Docker daemon", "docker.io", command("dockerd")})
	}
	if slices.Contains(groups, GroupNFS) {
		all = append(all, need{"an NFS server", "nfs-ganesha-vfs", func() bool {
			found, err := filepath.Glob("/usr/lib/*/ganesha/libfsalvfs.so")
			return err == nil && len(found) > 0 && exists(NFSServer)
		}})
	}
	if slices.Contains(groups, GroupMachine) {
		all = append(all,
			need{"debootstrap (the machine's disk)", "debootstrap", command("debootstrap")},
			need{"the keys of Debian's archive", "debian-archive-keyring",
				file("/usr/share/keyrings/debian-archive-keyring.gpg")},
		)
	}
	if slices.Contains(groups, GroupMachineQEMU) {
		all = append(all,
			need{"QEMU (the machine)", "qemu-system-x86", command("qemu-system-x86_64")},
			need{"qemu-img (the machine's disk)", "qemu-utils", command("qemu-img")},
			need{"depmod (the machine's kernel)", "kmod", command("depmod")},
		)
	}
	if slices.Contains(groups, GroupMachineUML) {
		all = append(all,
			need{"make (the machine's kernel)", "make", command("make")},
			need{"flex (the machine's kernel)", "flex", command("flex")},
			need{"bison (the machine's kernel)", "bison", command("bison")},
			need{"bc (the machine's kernel)", "bc", command("bc")},
			need{"patch (the machine's kernel)", "patch", command("patch")},
			need{"xz (the kernel's source)", "xz-utils", command("xz")},
		)
	}
	return all
}

// NFSServer is the path of Debian's NFS server.
const NFSServer = "/usr/bin/ganesha.nfsd"

// Busybox returns the path of a statically linked busybox, or "".
func Busybox() string {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"} {
		if static(path) {
			return path
		}
	}
	return ""
}

// static reports whether the file is an executable without an interpreter.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// InstallPackages installs what the machine lacks with apt-get, of what every
// rig needs and of what the groups need. It changes nothing when nothing is
// missing.
func InstallPackages(ctx context.Context, out io.Writer, groups ...string) error {
	return install(ctx, out, needs(groups), apt)
}

func install(ctx context.Context, out io.Writer, needs []need, apt func(context.Context, ...string) error) error {
	var missing, pkgs []string
	for _, n := range needs {
		if !n.present() {
			missing = append(missing, n.what)
			pkgs = append(pkgs, n.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	remedy := fmt.Sprintf("missing: %s: install them (on Debian: apt-get install %s)", strings.Join(missing, ", "),
		strings.Join(pkgs, " "))
	if os.Geteuid() != 0 {
		return fmt.Errorf("install packages: not root: %s", remedy)
	}
	_, _ = fmt.Fprintf(out, "rig: installing Debian packages: %s\n", strings.Join(pkgs, " "))
	args := append([]string{"install", "-y", "--no-install-recommends"}, pkgs...)
	if err := apt(ctx, args...); err != nil {
		// The package lists may be absent or too old.
		_, _ = fmt.Fprintf(out, "rig: apt-get could not install them with the lists it has, updating the lists\n")
		if err := apt(ctx, "update"); err != nil {
			return fmt.Errorf("install packages: %w: %s", err, remedy)
		}
		if err := apt(ctx, args...); err != nil {
			return fmt.Errorf("install packages: %w: %s", err, remedy)
		}
	}
	for _, n := range needs {
		if !n.present() {
			return fmt.Errorf("install packages: %s is still missing although %s is installed: look at the machine",
				n.what, n.pkg)
		}
	}
	return nil
}

func apt(ctx context.Context, args ...string) error {
	path, err := exec.LookPath("apt-get")
	if err != nil {
		return fmt.Errorf("no apt-get here: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"-qq", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, strings.TrimSpace(output.String()))
	}
	return nil
}
