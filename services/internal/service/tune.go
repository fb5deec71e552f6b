package service

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/microlet/microlet/proto/role"
)

const (
	// gcPercent is how far a heap may grow while a service works. What it takes for that is given back afterwards.
	gcPercent = 100

	// settleAfter is when a process has read its configuration and made its connections. What that took is given back
	// then, and not when the next collection is due, which in a process that waits is minutes later.
	settleAfter = 15 * time.Second

	// settlePeriod is how often a process looks whether it is idle and has memory that it does not use.
	settlePeriod = 15 * time.Second

	// settleLeast is what a look must be able to give back to the kernel, and settleShare the same as a part of what
	// lives. A collection takes some milliseconds for what lives, and a process that waits must not need one often.
	settleLeast = 1 << 20
	settleShare = 4

	// maxProcs bounds the processors a service computes on. Each brings caches of its own, and a
	// node agent's services wait more than they compute.
	maxProcs = 4
)

// busy are the services that may have to compute for several pods or streams at one time. To the others one
// processor is enough at any load that a node can give them: they wait, and what Go does to get a second
// processor to work costs them a good part of what they use. The prober grows by replicas.
var busy = map[role.Role]bool{role.Podsync: true, role.NodeAPI: true}

// TuneProcess sets Go's runtime up for a process of these services. It leaves what GOGC and GOMAXPROCS have set. It is
// for programs, before they run a service: a test that runs one keeps its own.
func TuneProcess(roles ...role.Role) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		time.AfterFunc(settleAfter, settle)
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

// settle collects garbage and gives back to the kernel what is free: now, and whenever the process is idle
// after work. It would not do it by itself: Go collects every two minutes then, lets a heap grow by 4 MiB at least
// between two collections, and keeps what the work took at its height.
func settle() {
	debug.FreeOSMemory()
	for before := readHeap(); ; {
		time.Sleep(settlePeriod)
		now := readHeap()
		if now.rests(before) && now.spare() >= max(settleLeast, now.live/settleShare) {
			debug.FreeOSMemory()
		}
		before = now
	}
}

// heap is the memory of Go's heap in bytes. What was allocated is counted from the start of the process.
type heap struct{ allocated, live, objects, free uint64 }

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	return heap{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64(),
		samples[3].Value.Uint64()}
}

// rests reports whether the process has allocated so little since before that its heap needs no collection for it.
func (h heap) rests(before heap) bool {
	return h.allocated-before.allocated < h.live*gcPercent/100
}

// spare is what lives no longer, as far as the last collection knows, and what is free and not given back.
func (h heap) spare() uint64 { return h.objects - min(h.live, h.objects) + h.free }

// processors is how many a process of these services computes on at most.
func processors(roles []role.Role) int {
	if slices.ContainsFunc(roles, func(r role.Role) bool { return busy[r] }) {
		return maxProcs
	}
	return 1
}
