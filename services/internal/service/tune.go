package service

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/programpages"
)

const (
	// gcPercent trades a little processor for memory: a service's live heap is a few MiB, and there
	// are many services on a node.
	gcPercent = 50

	// quietGCPercent is that of the services that allocate little while nothing happens.
	quietGCPercent = 25

	// settleAfter is when a process has read its configuration and made its connections. What that took is given back
	// then, and not when the next collection is due, which in a process that waits is minutes later.
	settleAfter = 15 * time.Second

	// settlePeriod is how often a service gives back what it does not use, such as what a batch of pods took. A
	// collection takes some milliseconds, and what of the program is used again some hundred microseconds.
	settlePeriod = 5 * time.Minute

	// quietPeriod is how often the quiet services collect garbage. Go lets a heap grow by a MiB at least between two
	// collections, which is half of what lives there.
	quietPeriod = 30 * time.Second

	// maxProcs bounds the processors a service computes on. Each brings caches of its own, and a
	// node agent's services wait more than they compute.
	maxProcs = 4
)

// busy are the services that may have to compute for several pods or streams at one time. To the others one
// processor is enough at any load that a node can give them: they wait, and what Go does to get a second
// processor to work costs them a good part of what they use. The prober grows by replicas.
var busy = map[role.Role]bool{role.Podsync: true, role.NodeAPI: true}

// quiet are the services that look at the node now and then, whatever its pods do.
var quiet = map[role.Role]bool{role.NodeStatus: true, role.ImageGC: true, role.Evictor: true}

// TuneProcess sets Go's runtime up for a process of one service or, in the single placement, of all. It leaves what
// GOGC and GOMAXPROCS have set. It is for programs, before they run a service: a test that runs one keeps its own.
func TuneProcess(r role.Role, single bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage(r, single))
		time.AfterFunc(settleAfter, func() {
			settle(context.Background(), quiet[r] && !single, debug.FreeOSMemory, unmap)
		})
	}
	if most := processors(r, single); os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > most {
		runtime.GOMAXPROCS(most)
	}
}

// settle gives back to the kernel what the process does not need any more, again and again until the context ends:
// garbage, by collect, and the pages of the program that it used, most of them at its start, by unmap.
func settle(ctx context.Context, quiet bool, collect, unmap func()) {
	period := settlePeriod
	if quiet {
		period = quietPeriod
	}
	t := time.NewTicker(period)
	defer t.Stop()
	for after := time.Duration(0); ctx.Err() == nil; after += period {
		collect()
		if after%settlePeriod == 0 {
			unmap()
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}

// unmap gives back the pages of the program. A process without them is right, too.
func unmap() {
	if err := programpages.Unmap(); err != nil {
		slog.Debug("pages of the program stay in memory", logkey.Err, err)
	}
}

// processors is how many a process computes on at most.
func processors(r role.Role, single bool) int {
	if single || busy[r] {
		return maxProcs
	}
	return 1
}

// garbage is how far the heap may grow between two collections, in percent of what lives.
func garbage(r role.Role, single bool) int {
	if quiet[r] && !single {
		return quietGCPercent
	}
	return gcPercent
}
