package leftovers

import (
	"slices"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

// A full disk takes what the policy would keep of ended pods, and nothing that a living pod needs.
func TestRemoveDeadTakesAllOfEndedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		c := m.cleanup(t)
		c.Policy = Policy{MaxPerContainer: 1, MaxContainers: -1}
		m.containers("ended", "web/3", "web/2")
		m.containers("lives", "web/13 running", "web/12", "web/11")
		m.known, m.ended = []types.UID{"ended", "lives"}, []types.UID{"ended"}
		n, err := c.RemoveDead(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(m.touched)
		if want := []string{"remove 11", "remove 2", "remove 3"}; n != 2 || !slices.Equal(m.touched, want) {
			t.Errorf("%d removed, %q; want %q", n, m.touched, want)
		}
	})
}
