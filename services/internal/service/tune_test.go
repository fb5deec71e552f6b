package service

import (
	"runtime"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		roles []role.Role
		want  int
	}{
		{[]role.Role{role.Podsync}, maxProcs}, {[]role.Role{role.NodeAPI}, maxProcs},
		{[]role.Role{role.Prober}, 1}, {[]role.Role{role.Bus}, 1}, {[]role.Role{role.Up}, 1},
		{[]role.Role{role.PLEG, role.Prober, role.Stats}, 1},
		{[]role.Role{role.PLEG, role.Podsync}, maxProcs}, {role.All(), maxProcs},
	} {
		if got := processors(c.roles); got != c.want {
			t.Errorf("%v compute on %d processors at most, want %d", c.roles, got, c.want)
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
		{"it is idle after work", heap{103 * mib, 8 * mib, 11 * mib, 20 * mib}, true, 23 * mib},
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
