package machine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/machine/internal/debian"
	"github.com/microlet/microlet/compose/rig/machine/internal/qemu"
)

// KindVariable is the variable of the environment that says of which kind machines shall be. Without it QEMU is taken
// where KVM works, and User-Mode Linux elsewhere.
const KindVariable = "MICROLET_MACHINE"

// choice is what new machines are made of.
type choice struct {
	kind  Kind
	accel qemu.Accel // of QEMU
	why   string
}

func (c choice) String() string {
	switch {
	case c.kind == KindUML:
		return "User-Mode Linux: " + c.why
	case c.accel == qemu.KVM:
		return "QEMU with KVM: " + c.why
	default:
		return "QEMU without KVM, which is slow: " + c.why
	}
}

// AskedKind is the kind that KindVariable asks for, or "".
func AskedKind() (Kind, error) {
	switch k := Kind(os.Getenv(KindVariable)); k {
	case "", KindUML, KindQEMU:
		return k, nil
	default:
		const remedy = "use %s or %s, or unset it and let the host decide"
		return "", fmt.Errorf("%s=%s is no kind of machine: "+remedy, KindVariable, k, KindUML, KindQEMU)
	}
}

// choose decides by the kind that is asked for, if any, and by what KVM does here, which it finds out only if it has to
// know.
func choose(asked Kind, try func() (qemu.TrialResult, error)) (choice, error) {
	because := fmt.Sprintf("%s=%s", KindVariable, asked)
	if asked == KindUML {
		return choice{kind: KindUML, why: because}, nil
	}
	v, err := try()
	switch {
	case err != nil:
		return choice{}, err
	case v.Works:
		return choice{kind: KindQEMU, accel: qemu.KVM, why: "KVM works here: " + v.Why}, nil
	case asked == "":
		return choice{kind: KindUML, why: "KVM does not work here: " + v.Why}, nil
	default:
		return choice{kind: KindQEMU, accel: qemu.TCG, why: because + ", and KVM does not work here: " + v.Why}, nil
	}
}

// tryKVM boots Debian's kernel with KVM, once a boot of this machine. It installs QEMU only where there is something to
// try.
func tryKVM(ctx context.Context, cache string, out io.Writer) (qemu.TrialResult, error) {
	trial := filepath.Base(debian.Path(cache))
	if v, ok := qemu.Remembered(cache, trial); ok {
		return v, nil
	}
	if why := qemu.Absent(); why != "" {
		return qemu.TrialResult{Why: why}, nil
	}
	if err := build.InstallPackages(ctx, out, build.GroupMachineQEMU); err != nil {
		return untried(ctx, err)
	}
	k, err := debian.Build(ctx, debian.Input{Cache: cache, Out: out})
	if err != nil {
		return untried(ctx, err)
	}
	_, _ = fmt.Fprintf(out, "rig: machine: trying whether KVM works here, for %s at most\n", trialLimit)
	return qemu.Try(ctx, cache, qemu.Trial{
		Name: trial, Program: qemu.Program, Marker: debian.Marker, Limit: trialLimit,
		Hardware: qemu.Hardware{
			Accel:      qemu.KVM,
			Memory:     256,
			CPUs:       2,
			Kernel:     k.Image,
			Initrd:     k.Initrd,
			Parameters: []string{debian.Probe},
		},
	})
}

// trialLimit is many times what a kernel takes to its first program where KVM works.
const trialLimit = 10 * time.Second

// untried is the result where what a trial needs cannot be had. It is not remembered.
func untried(ctx context.Context, err error) (qemu.TrialResult, error) {
	if ctx.Err() != nil {
		return qemu.TrialResult{}, err
	}
	return qemu.TrialResult{Why: fmt.Sprintf("it cannot be tried: %s", err)}, nil
}

// chooseHere decides for new machines of this one, and says how.
func chooseHere(ctx context.Context, cache string, out io.Writer) (choice, error) {
	asked, err := AskedKind()
	if err != nil {
		return choice{}, err
	}
	c, err := choose(asked, func() (qemu.TrialResult, error) { return tryKVM(ctx, cache, out) })
	if err != nil {
		return choice{}, fmt.Errorf("choose the kind of machine: %w", err)
	}
	_, _ = fmt.Fprintf(out, "rig: machine: %s\n", c)
	return c, nil
}
