package service

import (
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

func TestGarbage(t *testing.T) {
	for _, c := range []struct {
		r      role.Role
		single bool
		want   int
	}{
		{role.Evictor, false, quietGCPercent}, {role.ImageGC, false, quietGCPercent},
		{role.Podsync, false, gcPercent}, {role.Bus, false, gcPercent}, {role.Up, true, gcPercent},
	} {
		if got := garbage(c.r, c.single); got != c.want {
			t.Errorf("the heap of %s may grow by %d %% (all in one process: %v), want %d", c.r, got, c.single, c.want)
		}
	}
}
