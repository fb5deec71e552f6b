package service

import (
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

func TestGarbage(t *testing.T) {
	for _, c := range []struct {
		roles []role.Role
		want  int
	}{
		{[]role.Role{role.Evictor}, quietGCPercent}, {[]role.Role{role.ImageGC, role.Evictor}, quietGCPercent},
		{[]role.Role{role.Podsync}, gcPercent}, {[]role.Role{role.Bus}, gcPercent},
		{[]role.Role{role.Bus, role.NodeStatus}, gcPercent}, {role.All(), gcPercent},
	} {
		if got := garbage(c.roles); got != c.want {
			t.Errorf("the heap of %v may grow by %d %%, want %d", c.roles, got, c.want)
		}
	}
}
