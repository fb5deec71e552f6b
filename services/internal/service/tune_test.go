package service

import (
	"runtime"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		r      role.Role
		single bool
		want   int
	}{
		{role.Podsync, false, maxProcs}, {role.NodeAPI, false, maxProcs},
		{role.Prober, false, 1}, {role.Bus, false, 1}, {role.Up, false, 1},
		{role.Up, true, maxProcs},
	} {
		if got := processors(c.r, c.single); got != c.want {
			t.Errorf("%s computes on %d processors at most (all in one process: %v), want %d", c.r, got, c.single,
				c.want)
		}
	}
}

func TestAHeapAtRest(t *testing.T) {
	const mib = 1 << 20
	before := heap{allocated: 100 * mib}
	for _, c := range []struct {
		name  string
		now   heap
		rests bool
		spare uint64
	}{
		{"nothing happened", heap{100 * mib, 8 * mib, 8 * mib, 0}, true, 0},
		{"it came to rest after work", heap{103 * mib, 8 * mib, 11 * mib, 20 * mib}, true, 23 * mib},
		{"it works", heap{108 * mib, 8 * mib, 11 * mib, 20 * mib}, false, 23 * mib},
		{"what lived has been freed", heap{100 * mib, 8 * mib, 7 * mib, mib}, true, mib},
	} {
		if got := c.now.rests(before); got != c.rests {
			t.Errorf("%s: at rest %v, want %v", c.name, got, c.rests)
		}
		if got := c.now.spare(); got != c.spare {
			t.Errorf("%s: %d bytes to give back, want %d", c.name, got, c.spare)
		}
	}
}

func TestReadHeap(t *testing.T) {
	runtime.GC() // what lives is known after the first
	if h := readHeap(); h.allocated == 0 || h.live == 0 || h.objects == 0 {
		t.Errorf("the runtime's account of the heap is %+v", h)
	}
}
