package nodestatus

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/nodestatus/internal/lease"
	"github.com/microlet/microlet/services/nodestatus/internal/nodebus"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/report"
	"github.com/microlet/microlet/services/nodestatus/internal/schedule"
)

// The jobs of the loop.
const (
	jobPodsync   = "podsync"
	jobReadiness = "readiness"
	jobLease     = "lease"
	jobStatus    = "status"
	jobAddresses = "addresses"
)

// jobs are all that nodestatus does again and again.
func jobs(
	podsync *observe.Podsync, ready *observe.Ready, entries *nodebus.Entries, renewer *lease.Renewer,
	reporter *report.Reporter, down *shutdown,
) []schedule.Job {
	return []schedule.Job{
		{Name: jobPodsync, Deadline: 5 * time.Second, Run: func(ctx context.Context) time.Duration {
			podsync.Look(ctx)
			return 2 * time.Second
		}},
		{Name: jobReadiness, Deadline: time.Second, Run: func(context.Context) time.Duration {
			entries.Show(ready)
			if ready.Settled() {
				return time.Second
			}
			return 100 * time.Millisecond
		}},
		{Name: jobLease, Deadline: 20 * time.Second, Run: renewer.Renew},
		{Name: jobStatus, Deadline: time.Minute, Run: func(ctx context.Context) time.Duration {
			down.await(ctx)
			return reporter.Report(ctx)
		}},
	}
}
