package podcidr

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// runtime fails as often as configured, and records what it takes.
type runtime struct {
	mu    sync.Mutex
	fails int
	took  []string
	calls int
}

func (r *runtime) UpdatePodCIDR(_ context.Context, cidr string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.calls <= r.fails {
		return errors.New("away")
	}
	r.took = append(r.took, cidr)
	return nil
}

// node is a node with ranges that are sent to its channel.
type node struct {
	changes chan []string
	now     v1.Node
}

func (n *node) Until(ctx context.Context, wanted func(*v1.Node) bool) error {
	for !wanted(&n.now) {
		select {
		case n.now.Spec.PodCIDRs = <-n.changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// run runs an Updater in the bubble until the test is over.
func run(t *testing.T, o Options) {
	o.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- New(o).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (r *runtime) check(t *testing.T, calls int, took ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls != calls || !slices.Equal(r.took, took) {
		t.Errorf("after %d calls the runtime has taken %q, want %d and %q", r.calls, r.took, calls, took)
	}
}

func TestStandaloneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runtime{fails: 2}
		run(t, Options{Configured: "10.1.0.0/24", Runtime: r})
		r.check(t, 1)
		time.Sleep(2*retry + time.Second)
		r.check(t, 3, "10.1.0.0/24")
		time.Sleep(time.Hour)
		r.check(t, 3, "10.1.0.0/24")
	})
}

func TestWithoutARangeTheRuntimeIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alone, joined := &runtime{}, &runtime{}
		run(t, Options{Runtime: alone})
		run(t, Options{Runtime: joined, Node: &node{changes: make(chan []string)}})
		time.Sleep(time.Hour)
		alone.check(t, 0)
		joined.check(t, 0)
	})
}

// The Node's range replaces that of the configuration, also one that the runtime has not taken.
func TestTheRangeOfTheNodeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := &runtime{}, &node{changes: make(chan []string)}
		run(t, Options{Configured: "10.1.0.0/24", Runtime: r, Node: n})
		r.check(t, 1, "10.1.0.0/24")
		n.changes <- []string{"10.2.0.0/24", "fd00::/64"}
		r.check(t, 2, "10.1.0.0/24", "10.2.0.0/24,fd00::/64")
		n.changes <- []string{"10.2.0.0/24", "fd00::/64"} // as a status changes, and the range does not
		n.changes <- nil
		r.check(t, 2, "10.1.0.0/24", "10.2.0.0/24,fd00::/64")
	})
	synctest.Test(t, func(t *testing.T) {
		r, n := &runtime{fails: 2}, &node{changes: make(chan []string)}
		run(t, Options{Configured: "10.1.0.0/24", Runtime: r, Node: n})
		time.Sleep(time.Second)
		n.changes <- []string{"10.2.0.0/24"}
		r.check(t, 2)
		time.Sleep(retry)
		r.check(t, 3, "10.2.0.0/24")
	})
}
