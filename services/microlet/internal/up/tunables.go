package up

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/microlet/microlet/services/internal/logkey"
)

// tunables are what the kubelet wants of the kernel: a process that asks for memory gets it, of several the OOM killer
// chooses one, a kernel that is broken starts again, and root may have a key for each container.
// Source: kubelet, setupKernelTunables in pkg/kubelet/cm.
var tunables = map[string]int{
	sysctl.VMOvercommitMemory: sysctl.VMOvercommitMemoryAlways,
	sysctl.VMPanicOnOOM:       sysctl.VMPanicOnOOMInvokeOOMKiller,
	sysctl.KernelPanic:        sysctl.KernelPanicRebootTimeout,
	sysctl.KernelPanicOnOops:  sysctl.KernelPanicOnOopsAlways,
	sysctl.RootMaxKeys:        sysctl.RootMaxKeysSetting,
	sysctl.RootMaxBytes:       sysctl.RootMaxBytesSetting,
}

// tuneKernel sets the sysctls that differ. One that cannot be set, as in a container, is a warning: pods run
// nevertheless. With protect (protectKernelDefaults), nothing is set and what differs is an error.
func tuneKernel(kernel sysctl.Interface, protect bool, log *slog.Logger) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(tunables)) {
		want := tunables[name]
		now, err := kernel.GetSysctl(name)
		switch {
		case err == nil && now == want:
		case protect && err != nil:
			errs = append(errs, fmt.Errorf("protectKernelDefaults: %s cannot be read: %w", name, err))
		case protect:
			errs = append(errs, fmt.Errorf("protectKernelDefaults: invalid kernel flag: %s, expected value: %d, actual value: "+
				"%d; set it, or turn the field off", name, want, now))
		default:
			if err == nil {
				err = kernel.SetSysctl(name, want)
			}
			if err != nil {
				log.Warn("sysctl not set", "sysctl", name, "to", want, logkey.Err, err)
				continue
			}
			log.Info("sysctl set", "sysctl", name, "from", now, "to", want)
		}
	}
	return errors.Join(errs...)
}
