// Package csiallocatable asks CSI drivers again for what they say of the node, as often as their CSIDriver objects say
// (nodeAllocatableUpdatePeriodSeconds): how many volumes a node takes may change while it runs.
//
// Source: KEP-4876.
package csiallocatable

import (
	"context"
	"log/slog"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// timeout bounds one question, and what is written then.
const timeout = 2 * time.Minute

// Drivers are the registered ones; see csi.Drivers.
type Drivers interface {
	Names() []string
	// Refresh asks a driver, and has the CSINode say what it answers.
	Refresh(ctx context.Context, driver string) error
	// Changed is closed when a driver is registered or gone.
	Changed() <-chan struct{}
}

// Objects are the cluster's CSIDrivers; see csiobjects.Reader.
type Objects interface {
	// Watched returns the object of a driver, or nil if there is none.
	Watched(driver string) *storagev1.CSIDriver
	// Changed is closed when an object changes.
	Changed() <-chan struct{}
}

// Updater asks the drivers.
type Updater struct {
	Drivers Drivers
	Objects Objects
	Log     *slog.Logger
}

// asked is a driver that is asked.
type asked struct {
	period time.Duration
	end    context.CancelFunc
}

// Run asks until ctx ends.
func (u *Updater) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := map[string]asked{}
	for {
		// Before they are looked at, so that no change is missed.
		drivers, objects := u.Drivers.Changed(), u.Objects.Changed()
		wanted := u.periods()
		for driver, a := range running {
			if wanted[driver] != a.period {
				a.end()
				delete(running, driver)
			}
		}
		for driver, period := range wanted {
			if _, ok := running[driver]; ok {
				continue
			}
			each, end := context.WithCancel(ctx)
			running[driver] = asked{period, end}
			wg.Go(func() { u.ask(each, driver, period) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-drivers:
		case <-objects:
		}
	}
}

// periods are how often the drivers of this node want to be asked.
func (u *Updater) periods() map[string]time.Duration {
	periods := map[string]time.Duration{}
	for _, driver := range u.Drivers.Names() {
		object := u.Objects.Watched(driver)
		if object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
			continue
		}
		// The API server accepts 10 s and more.
		if period := time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second; period > 0 {
			periods[driver] = period
		}
	}
	return periods
}

func (u *Updater) ask(ctx context.Context, driver string, period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		once, cancel := context.WithTimeout(ctx, timeout)
		err := u.Drivers.Refresh(once, driver)
		cancel()
		if err != nil && ctx.Err() == nil {
			u.Log.Warn("CSINode does not have what a CSI driver now says of the node", "driver", driver, logkey.Err, err)
		}
	}
}
