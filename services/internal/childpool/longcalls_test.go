package childpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/shares"
)

// remove is an operation that takes long.
var remove = Operation[string, string]{Name: "touch", Patience: 10 * time.Minute, Long: true}

// newNode is a world with file systems of the node's own, and others at /csi.
func newNode(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.own = []string{"/", "/var/lib/kubelet"}
	points := []string{"/"}
	for i := range 2 * maxChildren {
		points = append(points, fmt.Sprintf("/slow/csi/%d", i), fmt.Sprintf("/hung/csi/%d", i))
	}
	w.mounts.list = listOf(points...)
	return w
}

// TestLongCallsLeaveChildrenToOthers: pods with many files are removed, and have their volumes given to them.
func TestLongCallsLeaveChildrenToOthers(t *testing.T) {
	for name, path := range map[string]string{
		"on the node's own file system": "/slow/var/lib/kubelet/pods/%d", "on others": "/slow/csi/%d/x",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newNode(t)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				var all sync.WaitGroup
				for i := range maxChildren {
					all.Go(func() {
						path := fmt.Sprintf(path, i)
						_, err := remove.Do(ctx, w, path, path)
						if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "do not answer") {
							t.Errorf("%s: %v, and all would answer", path, err)
						}
					})
				}
				time.Sleep(time.Duration(2*maxChildren/parallel) * slow)
				began := time.Now()
				for _, path := range []string{"/var/lib/kubelet/pods/other/volumes/tmp", "/csi/60/data", "server:/export"} {
					if _, err := touch.Do(t.Context(), w, path, path); err != nil {
						t.Errorf("another pod's call: %v", err)
					}
				}
				if took := time.Since(began); took > slow {
					t.Errorf("other pods' calls took %s", took)
				}
				all.Wait()
				w.end(t)
			})
		})
	}
}

// TestLongCallsWaitInTheirOrder for as long as those before them go on, longer than any of them may take.
func TestLongCallsWaitInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		op := remove
		op.Patience = 5 * time.Second
		op.Deadline = 4 * time.Second // the wait does not count
		began := time.Now()
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		const calls = 24
		for i := range calls {
			synctest.Wait() // each has its number
			all.Go(func() {
				path := fmt.Sprintf("/counted/%d", i)
				if _, err := op.Do(t.Context(), w, path, path); err != nil {
					t.Errorf("call %d after %s: %v", i, time.Since(began), err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
		}
		all.Wait()
		for i := 0; i < calls; i += perFileSystem / 2 { // those that run together end in any order
			slices.Sort(order[i : i+perFileSystem/2])
		}
		if !slices.IsSorted(order) {
			t.Errorf("they have ended in the order %v", order)
		}
		least := time.Duration(calls/(perFileSystem/2)) * 3 * time.Second
		if took := time.Since(began); took < least || took > 2*least {
			t.Errorf("they took %s", took)
		}
		w.end(t)
	})
}

// TestLongCallsOfOneNamespaceHoldUpNoOther: pods with millions of files are removed, each for 2 min at a time.
func TestLongCallsOfOneNamespaceHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		op := remove
		op.Patience = time.Hour
		many := shares.WithOwner(t.Context(), "many")
		many, cancel := context.WithCancel(many)
		op.Deadline = 2 * time.Minute
		var all sync.WaitGroup
		for i := range 100 {
			synctest.Wait()
			all.Go(func() {
				path := fmt.Sprintf("/slow/%d", i)
				_, _ = op.Do(many, w, path, path)
			})
		}
		began := time.Now()
		for i := range 3 {
			path := fmt.Sprintf("/few/%d", i)
			if _, err := op.Do(shares.WithOwner(t.Context(), "few"), w, path, path); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 7*time.Minute {
			t.Errorf("three small pods of another namespace took %v", took)
		}
		cancel()
		all.Wait()
		w.end(t)
	})
}

// TestALongCallDoesNotWaitForWhatHangs: its error says what keeps it.
func TestALongCallDoesNotWaitForWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		var all sync.WaitGroup
		for i := range perFileSystem / 2 {
			all.Go(func() {
				op, path := remove, fmt.Sprintf("/hung/%d", i)
				op.Deadline = 2 * time.Minute
				if _, err := op.Do(t.Context(), w, path, path); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", path, err)
				}
			})
		}
		all.Wait()
		began := time.Now()
		_, err := remove.Do(t.Context(), w, "/another", "/another")
		const want = "touch /another: not tried: 4 other calls that take long on the file system at / do not answer: " +
			"waited for them in vain"
		if err == nil || err.Error() != want || time.Since(began) != DefaultPatience {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		began = time.Now()
		if _, err := touch.Do(t.Context(), w, "/quick", "/quick"); err != nil || time.Since(began) > slow {
			t.Errorf("a quick call: %v after %s", err, time.Since(began))
		}
		w.end(t)
	})
}

// TestACallThatWasNotTriedSaysWhy: its reader learns whether anything hangs.
func TestACallThatWasNotTriedSaysWhy(t *testing.T) {
	for _, c := range []struct {
		of   obstacle
		want string
	}{
		{obstacle{tally: tally{calls: 8, hung: 8}, where: "on x"}, "8 other calls on x do not answer"},
		{obstacle{tally: tally{calls: 8}, where: "on x"}, "8 other calls on x are under way"},
		{
			obstacle{tally: tally{calls: 8, hung: 3}, where: "on x"},
			"8 other calls on x are under way, and 3 of them do not answer",
		},
		{obstacle{tally: tally{calls: 4}, where: "on x", long: true}, "4 other calls that take long on x are under way"},
	} {
		if got := c.of.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
