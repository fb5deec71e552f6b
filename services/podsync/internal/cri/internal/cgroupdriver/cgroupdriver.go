// Package cgroupdriver determines the cgroup driver of the runtime.
//
// It asks the runtime (RuntimeConfig). If the runtime does not say, it uses the configured driver (KEP-4033). The
// driver is fixed when podsync starts. A runtime that does not answer does not block podsync. A runtime that later
// reports another driver is detected, because every cgroup parent would be wrong.
package cgroupdriver

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
)

const timeout = 2 * time.Second

// Runtime answers for the container runtime.
type Runtime interface {
	RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error)
}

// Driver is the one that podsync works with.
type Driver struct {
	Name string

	runtime    Runtime
	configured string
	log        *slog.Logger
	// confirmed: the runtime has reported its driver, or cannot.
	confirmed bool
}

// Find asks the runtime, and takes the configured driver for now if it does not answer.
func Find(ctx context.Context, r Runtime, configured string, log *slog.Logger) *Driver {
	d := &Driver{runtime: r, configured: configured, log: log}
	d.Name, d.confirmed = d.ask(ctx)
	return d
}

// ask returns the runtime's driver; sure is false while the runtime does not answer.
func (d *Driver) ask(ctx context.Context) (name string, sure bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := d.runtime.RuntimeConfig(ctx)
	switch {
	case err != nil && !runtime.IsUnimplemented(err):
		d.log.Warn("runtime has not reported its cgroup driver yet, using the configured one", "driver", d.configured,
			logkey.Err, err)
		return d.configured, false
	case err != nil || answer.GetLinux() == nil:
		return d.configured, true
	case answer.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD:
		return cgroups.DriverSystemd, true
	default:
		return cgroups.DriverCgroupfs, true
	}
}

// Confirm asks again as long as the runtime has not reported its driver. It fails when that is another one than podsync
// started with: podsync then ends, and is started again at once. It is called by one goroutine.
func (d *Driver) Confirm(ctx context.Context) error {
	if d.confirmed {
		return nil
	}
	name, sure := d.ask(ctx)
	if !sure {
		return nil
	}
	if name != d.Name {
		return fmt.Errorf("the runtime uses the cgroup driver %s, podsync started with %s before it could ask", name,
			d.Name)
	}
	d.confirmed = true
	return nil
}
