package machine

import (
	"context"
	"io"
	"path"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/machine/internal/debian"
	"github.com/microlet/microlet/compose/rig/machine/internal/disk"
	"github.com/microlet/microlet/compose/rig/machine/internal/kernel"
)

// Assets are what all machines of a kind share and only read.
type Assets struct {
	Kind    Kind   `json:"kind,omitempty"`    // "" is KindUML
	Accel   string `json:"accel,omitempty"`   // of QEMU: kvm or tcg
	Kernel  string `json:"kernel"`            // the executable of User-Mode Linux, or what QEMU starts
	Initrd  string `json:"initrd,omitempty"`  // of QEMU: the kernel's first filesystem
	Modules string `json:"modules,omitempty"` // of QEMU: the disk with the kernel's modules
	Image   string `json:"image"`             // the clean disk
	Key     string `json:"key"`               // root's private key
	HostKey string `json:"hostKey"`           // the public key of the machine itself
}

// kind of the machines. What was recorded when there was one kind has none.
func (a Assets) kind() Kind {
	if a.Kind == "" {
		return KindUML
	}
	return a.Kind
}

// Places of programs on the disk.
const (
	binDir = "usr/local/bin"
	cniDir = "opt/cni/bin"
)

// Build chooses the kind of machine, by the host and by KindVariable, and returns its kernel and the disk. It makes
// those that the cache lacks: the first time three minutes and some 150 MB from Debian's mirror, for User-Mode Linux
// twenty minutes of a core and some 300 MB; nothing later. Source is a folder inside the repository. Out gets progress,
// a line at a time.
func Build(ctx context.Context, source string, out io.Writer) (Assets, error) {
	if err := build.InstallPackages(ctx, out, build.GroupMachine); err != nil {
		return Assets{}, err
	}
	tools, err := build.Locate(source)
	if err != nil {
		return Assets{}, err
	}
	cache, err := build.CacheDir()
	if err != nil {
		return Assets{}, err
	}
	chosen, err := chooseHere(ctx, cache, out)
	if err != nil {
		return Assets{}, err
	}
	names := []string{build.Containerd, build.Shim, build.Ctr, build.Runc}
	builder := &build.Builder{Tools: tools, Cache: cache, Out: out}
	built, err := builder.BuildOnly(ctx, append(names, build.CNIPlugins...)...)
	if err != nil {
		return Assets{}, err
	}
	programs := map[string]string{}
	for _, name := range names {
		programs[path.Join(binDir, name)] = built[name]
	}
	for _, name := range build.CNIPlugins {
		programs[path.Join(cniDir, name)] = built[name]
	}
	d, err := disk.Build(ctx, disk.Input{Cache: cache, Out: out, Programs: programs})
	if err != nil {
		return Assets{}, err
	}
	a := Assets{Kind: chosen.kind, Accel: string(chosen.accel), Image: d.Image, Key: d.Key, HostKey: d.HostKey}
	return a, a.buildKernel(ctx, cache, out)
}

// buildKernel makes the kernel of the kind and of no other.
func (a *Assets) buildKernel(ctx context.Context, cache string, out io.Writer) error {
	if a.Kind == KindUML {
		err := build.InstallPackages(ctx, out, build.GroupMachineUML)
		if err == nil {
			a.Kernel, err = kernel.Build(ctx, kernel.Input{Cache: cache, Out: out})
		}
		return err
	}
	if err := build.InstallPackages(ctx, out, build.GroupMachineQEMU); err != nil {
		return err
	}
	k, err := debian.Build(ctx, debian.Input{Cache: cache, Out: out})
	a.Kernel, a.Initrd, a.Modules = k.Image, k.Initrd, k.Modules
	return err
}
