// Package catalog lists the services of the binary in start order.
//
// The command line, the supervisor and the single placement use the same definition, so a service is the same however
// it is started.
package catalog

import (
	"github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/evictor"
	"github.com/microlet/microlet/services/imagegc"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodeapi"
	"github.com/microlet/microlet/services/nodestatus"
	"github.com/microlet/microlet/services/pleg"
	"github.com/microlet/microlet/services/podsync"
	"github.com/microlet/microlet/services/prober"
	"github.com/microlet/microlet/services/resources"
	"github.com/microlet/microlet/services/stats"
)

// Services returns the services, in start order. Each call returns new ones with flags of their own.
func Services() []service.Definition {
	return []service.Definition{
		bus.Definition(), podsync.Definition(), pleg.Definition(), prober.Definition(), nodestatus.Definition(),
		imagegc.Definition(), stats.Definition(), evictor.Definition(), nodeapi.Definition(),
		resources.Definition(),
	}
}
