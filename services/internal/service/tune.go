package service

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/microlet/microlet/proto/role"
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

	// settlePeriod is how often the quiet services give back what they do not use. Go lets a heap grow by a MiB at least
	// between two collections, which is half of what lives there. One takes some milliseconds.
	settlePeriod = 30 * time.Second

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

// TuneProcess sets Go's runtime up for a process of these services. It leaves what GOGC and GOMAXPROCS have set. It is
// for programs, before they run a service: a test that runs one keeps its own.
func TuneProcess(roles ...role.Role) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage(roles))
		time.AfterFunc(settleAfter, func() { settle(areQuiet(roles)) })
	}
	if most := processors(roles); os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > most {
		runtime.GOMAXPROCS(most)
	}
}

// LimitHeap has Go's runtime collect garbage to stay within the sum of what the services of the process aim at. It
// leaves what GOMEMLIMIT has set.
func LimitHeap(services ...Definition) {
	var target int64
	for _, d := range services {
		own := d.heapTarget()
		if own == 0 {
			return // it has no bound
		}
		target += own
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(target)
	}
}

// settle collects garbage and gives back to the kernel what is free, once or again and again.
func settle(again bool) {
	debug.FreeOSMemory()
	for again {
		time.Sleep(settlePeriod)
		debug.FreeOSMemory()
	}
}

// processors is how many a process of these services computes on at most.
func processors(roles []role.Role) int {
	if slices.ContainsFunc(roles, func(r role.Role) bool { return busy[r] }) {
		return maxProcs
	}
	return 1
}

// areQuiet reports whether all services of a process are quiet.
func areQuiet(roles []role.Role) bool {
	return !slices.ContainsFunc(roles, func(r role.Role) bool { return !quiet[r] })
}

// garbage is how far the heap may grow between two collections, in percent of what lives.
func garbage(roles []role.Role) int {
	if areQuiet(roles) {
		return quietGCPercent
	}
	return gcPercent
}
