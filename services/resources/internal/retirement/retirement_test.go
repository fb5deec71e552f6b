package retirement

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// node has pods, and records whose grants are forgotten.
type node struct {
	*Retirement

	mu        sync.Mutex
	pods      map[types.UID]bool
	forgotten []types.UID
}

func (n *node) Has(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid]
}

func (n *node) put(uid types.UID, has bool) {
	n.mu.Lock()
	n.pods[uid] = has
	n.mu.Unlock()
	n.Note(uid)
}

// run runs a retirement in virtual time.
func run(t *testing.T, test func(*node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{pods: map[types.UID]bool{}}
		n.Retirement = New(n, func(uids ...types.UID) { n.forgotten = append(n.forgotten, uids...) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		test(n)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// later lets enough time pass for what is due.
func later() {
	time.Sleep(3 * delay)
	synctest.Wait()
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	run(t, func(n *node) {
		for _, uid := range []types.UID{"a", "b", "c"} {
			n.put(uid, true)
		}
		n.put("a", false)
		time.Sleep(delay / 2)
		synctest.Wait()
		if len(n.forgotten) != 0 {
			t.Errorf("forgotten too early: %q", n.forgotten)
		}
		n.put("b", false)
		later()
		slices.Sort(n.forgotten)
		if !slices.Equal(n.forgotten, []types.UID{"a", "b"}) {
			t.Errorf("forgotten are %q", n.forgotten)
		}
	})
}

// The status of a pod may come before the pod.
func TestAPodThatWasNotThereYetIsNotGone(t *testing.T) {
	run(t, func(n *node) {
		n.Note("a")
		later()
		if len(n.forgotten) != 0 {
			t.Errorf("forgotten are %q", n.forgotten)
		}
	})
}

// A static pod comes back with the UID that it had, and is granted something before the bus has it.
func TestAPodThatComesBackKeepsItsGrant(t *testing.T) {
	for name, back := range map[string]func(*node){
		"asked": func(n *node) { n.Asked("a") },
		"put":   func(n *node) { n.put("a", true) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(n *node) {
				n.put("a", true)
				n.put("a", false)
				back(n)
				later()
				if len(n.forgotten) != 0 {
					t.Errorf("forgotten are %q", n.forgotten)
				}
				if held := slices.Collect(maps.Keys(n.gone)); len(held) != 0 {
					t.Errorf("still held are %q", held)
				}
			})
		})
	}
}
