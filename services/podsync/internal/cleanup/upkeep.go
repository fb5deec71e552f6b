package cleanup

import (
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/sources"
)

// upkeepPeriod is how often the shares of the QoS cgroups are compared with the pods, and
// expired tokens forgotten.
const upkeepPeriod = 10 * time.Second

// Tokens forget those that have expired.
type Tokens interface {
	Collect()
}

// Sources know which of them are awaited.
type Sources interface {
	// Unsynced returns the sources that are not synced yet.
	Unsynced() []podsyncv1.PodSource
}

// driver is the cgroup driver; see cgroupdriver.Driver.
type driver interface {
	Confirm(ctx context.Context) error
}

// cgroups are the QoS classes'.
type cgroups interface {
	UpdateQOS(pods []*v1.Pod) error
}

// upkeep is a loop of small duties.
type upkeep struct {
	driver  driver
	tokens  Tokens
	sources Sources
	cgroups cgroups
	pods    func() []*v1.Pod
	waiting func(status string)
	log     *slog.Logger
}

// run ends with ctx, or when podsync must restart because it works with the wrong cgroup driver.
func (u *upkeep) run(ctx context.Context) error {
	ticker := time.NewTicker(upkeepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := u.driver.Confirm(ctx); err != nil {
			return err
		}
		u.tokens.Collect()
		if missing := u.sources.Unsynced(); len(missing) > 0 {
			u.waiting("waiting for pod sources: " + sources.Names(missing))
			continue
		}
		if err := u.cgroups.UpdateQOS(u.pods()); err != nil {
			u.log.Error("QoS cgroups not updated", logkey.Err, err)
		}
	}
}
