package debian

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/cached"
	"github.com/microlet/microlet/compose/rig/machine/internal/archive"
)

const (
	release = "bookworm" // the disk's, too
	// pkg depends on the release's latest kernel without drivers of real hardware. It has all that a node needs.
	pkg = "linux-image-cloud-amd64"
	// format is part of the cache's key: raise it when the same input shall give another kernel.
	format = "1"
)

// hardware are the modules for the machine's hardware: there is no udev that would load them. The last one reports a
// panic to QEMU.
var hardware = []string{"virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "pvpanic_pci"}

//go:embed init
var initScript []byte

// Marker is the line that the kernel's first program writes when it is started with the parameter Probe, after which it
// switches the machine off.
const (
	Marker = "init: the machine works"
	Probe  = "machine.probe"
)

// Kernel are the files of a kernel.
type Kernel struct {
	Image   string // what QEMU starts
	Initrd  string // the first filesystem
	Modules string // a raw ext4 filesystem, which must not be written to
}

// Input says where a kernel is kept and where progress is printed.
type Input struct {
	Cache string
	Out   io.Writer // progress, a line at a time
}

// Path returns the folder in which the kernel of this source tree is or will be.
func Path(cache string) string {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, format, release, pkg, hardware)
	_, _ = h.Write(initScript)
	return filepath.Join(cache, "machine", "debian-"+release+"-"+hex.EncodeToString(h.Sum(nil))[:12])
}

// Build returns the kernel and makes it if the cache lacks it. It needs root.
func Build(ctx context.Context, in Input) (Kernel, error) {
	dir := Path(in.Cache)
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(in.Out, "rig: kernel of the machine, Debian "+release+": "+format+"\n", args...)
	}
	k := Kernel{
		Image: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"),
		Modules: filepath.Join(dir, "modules.img"),
	}
	err := cached.Folder(ctx, dir, say, func(half string) error {
		work := filepath.Join(half, "work")
		root, version, err := unpack(ctx, work, say)
		if err != nil {
			return err
		}
		say("it is %s", version)
		if err := os.Rename(filepath.Join(root, "boot/vmlinuz-"+version), filepath.Join(half, "vmlinuz")); err != nil {
			return err
		}
		if err := makeInitrd(ctx, work, root, version, filepath.Join(half, "initrd"), say); err != nil {
			return err
		}
		image := filepath.Join(half, "modules.img")
		mkfs := []string{"mkfs.ext4", "-q", "-F", "-m0", "-O", "^has_journal", "-d", filepath.Join(root, "lib/modules")}
		if err := cached.Run(ctx, cached.Command{Args: append(mkfs, image, "256M")}, say); err != nil {
			return err
		}
		return os.RemoveAll(work)
	})
	if err != nil {
		return Kernel{}, fmt.Errorf("make the machine's kernel: %w", err)
	}
	return k, nil
}

// unpack fetches the kernel and returns a folder with the package's files, and the kernel's version.
func unpack(ctx context.Context, work string, say func(string, ...any)) (root, version string, err error) {
	a, err := archive.Open(ctx, work, release, say)
	if err != nil {
		return "", "", err
	}
	latest, err := a.Download(ctx, pkg)
	if err != nil {
		return "", "", err
	}
	depends, err := exec.CommandContext(ctx, "dpkg-deb", "--field", latest, "Depends").Output()
	if err != nil {
		return "", "", fmt.Errorf("read what %s depends on: %w", pkg, err)
	}
	version, err = versionOf(string(depends))
	if err != nil {
		return "", "", err
	}
	file, err := a.Download(ctx, "linux-image-"+version)
	if err != nil {
		return "", "", err
	}
	root = filepath.Join(work, "root")
	for _, args := range [][]string{{"dpkg-deb", "-x", file, root}, {"depmod", "-b", root, version}} {
		if err := cached.Run(ctx, cached.Command{Args: args}, say); err != nil {
			return "", "", err
		}
	}
	return root, version, nil
}

// versionOf takes the kernel's version out of the dependencies of the package that stands for the latest one.
func versionOf(depends string) (string, error) {
	for _, d := range strings.Split(depends, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(d), " ")
		if version, ok := strings.CutPrefix(name, "linux-image-"); ok {
			return version, nil
		}
	}
	return "", fmt.Errorf("%s depends on no kernel: %q", pkg, depends)
}

// makeInitrd writes the first filesystem.
func makeInitrd(ctx context.Context, work, root, version, to string, say func(string, ...any)) error {
	modules := filepath.Join("lib/modules", version)
	index, err := os.ReadFile(filepath.Join(root, modules, "modules.dep"))
	if err != nil {
		return err
	}
	needed, err := closure(string(index), hardware)
	if err != nil {
		return err
	}
	busybox := build.Busybox()
	if busybox == "" {
		return errors.New("there is no static busybox")
	}
	first := filepath.Join(work, "first")
	copies := map[string]string{"bin/busybox": busybox}
	for _, m := range needed {
		copies[filepath.Join(modules, m)] = filepath.Join(root, modules, m)
	}
	for _, name := range []string{"modules.order", "modules.builtin"} {
		copies[filepath.Join(modules, name)] = filepath.Join(root, modules, name)
	}
	files := map[string][]byte{"init": initScript, "modules": []byte(strings.Join(hardware, " ") + "\n")}
	for to, from := range copies {
		if files[to], err = os.ReadFile(from); err != nil {
			return err
		}
	}
	for name, text := range files {
		name = filepath.Join(first, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"proc", "dev", "root"} {
		if err := os.Mkdir(filepath.Join(first, dir), 0o755); err != nil {
			return err
		}
	}
	// The kernel opens it for the first program, before anything is mounted.
	if err := unix.Mknod(filepath.Join(first, "dev/console"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 1))); err != nil {
		return fmt.Errorf("make the console's device: %w", err)
	}
	const pack = `find . | "$1" cpio -o -H newc > "$2"`
	for _, c := range []cached.Command{
		{Args: []string{"depmod", "-b", first, version}},
		{Args: []string{"bash", "-o", "pipefail", "-c", pack, "pack", busybox, to}, Dir: first},
	} {
		if err := cached.Run(ctx, c, say); err != nil {
			return err
		}
	}
	return nil
}

// closure returns the files of the modules and of those that they need. The index has a line for each module: its file,
// a colon, and the files of all that it needs.
func closure(index string, modules []string) ([]string, error) {
	var files []string
	for _, m := range modules {
		found := false
		for line := range strings.Lines(index) {
			file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			// A file may be written with a dash where the module has an underscore.
			name, _, _ := strings.Cut(path.Base(file), ".")
			if strings.ReplaceAll(name, "-", "_") != m {
				continue
			}
			found = true
			files = append(files, file)
			files = append(files, strings.Fields(needs)...)
		}
		if !found {
			return nil, fmt.Errorf("the kernel has no module %s", m)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}
