package relist

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// node is a runtime with pods that change, and workers that have seen them as they were.
type node struct {
	mu    sync.Mutex
	now   map[types.UID]string
	seen  map[types.UID]string
	fails bool
	looks int
	woken []types.UID
}

func (n *node) Digests(context.Context) (map[types.UID]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	if n.fails {
		return nil, errors.New("no answer")
	}
	return maps.Clone(n.now), nil
}

func (n *node) Seen() map[types.UID]string { return n.seen }

func (n *node) Wake(uid types.UID, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken = append(n.woken, uid)
}

// relist runs the loop for a while with pleg's last sign at that age.
func relist(t *testing.T, n *node, span time.Duration, sign func() time.Time, connects ...time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	r := Relister{
		Runtime: n, Workers: n, LastProof: sign, Log: slog.New(slog.DiscardHandler),
		Relists: newCounter(prometheus.NewRegistry()),
	}
	for _, after := range connects {
		time.AfterFunc(after, r.connected)
	}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestLooksOnlyWhilePlegIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		relist(t, n, time.Minute, time.Now)
		if n.looks != 0 {
			t.Fatalf("looked %d times beside a pleg that lives", n.looks)
		}
	})
}

func TestNoticesAnExitWithinTwelveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			now:  map[types.UID]string{"same": "a", "exited": "c"},
			seen: map[types.UID]string{"same": "a", "exited": "b", "gone": "d"},
		}
		died := time.Now()
		relist(t, n, 12*time.Second, func() time.Time { return died })
		woken := map[types.UID]bool{}
		for _, uid := range n.woken {
			woken[uid] = true
		}
		if !maps.Equal(woken, map[types.UID]bool{"exited": true, "gone": true}) {
			t.Fatalf("woke %v", n.woken)
		}
		if n.looks != 2 {
			t.Fatalf("looked %d times in 12 s, want 2: at 7 s and 5 s later", n.looks)
		}
	})
}

func TestARuntimeThatDoesNotAnswerWakesNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{fails: true, seen: map[types.UID]string{"a": "x"}}
		relist(t, n, time.Minute, func() time.Time { return time.Time{} })
		if len(n.woken) != 0 {
			t.Fatalf("woke %v: an unanswered list is not an empty one", n.woken)
		}
		if n.looks < 10 {
			t.Fatalf("gave up after %d looks", n.looks)
		}
	})
}

// A hint that pleg publishes while podsync has no connection to the bus reaches no one, and pleg has done its part.
func TestLooksOnceAfterEachConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			now:  map[types.UID]string{"same": "a", "exited": "c"},
			seen: map[types.UID]string{"same": "a", "exited": "b"},
		}
		relist(t, n, 29*time.Second, time.Now, 0, 10*time.Second, 10*time.Second+time.Millisecond, 20*time.Second)
		if n.looks != 3 || len(n.woken) != 3 || n.woken[0] != "exited" {
			t.Errorf("looked %d times after connects at 0, 10 and 20 s, and woke %v", n.looks, n.woken)
		}
	})
}

// A look that fails is repeated.
func TestALookAfterAConnectThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{fails: true}
		relist(t, n, 29*time.Second, time.Now, 0)
		if n.looks < 5 {
			t.Errorf("gave up after %d looks", n.looks)
		}
	})
}
