package pods

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAPodAtRestHasOneGoroutine: that of its worker. Its status and its volumes need none until something is due.
func TestAPodAtRestHasOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.wait(time.Second)
		const pods = 20
		before := runtime.NumGoroutine()
		for i := range pods {
			p := testPod(types.UID(fmt.Sprint(i)))
			p.Spec.Volumes = []v1.Volume{{Name: "v"}}
			n.apply(p)
		}
		n.wait(10 * time.Second)
		if got := runtime.NumGoroutine() - before; got > pods {
			t.Errorf("%d pods at rest have %d goroutines", pods, got)
		}
		for i := range pods {
			n.workers.Refresh(types.UID(fmt.Sprint(i)), "test")
		}
		n.wait(10 * time.Second)
		if got := runtime.NumGoroutine() - before; got > pods || n.refreshed["0"] == 0 {
			t.Errorf("%d pods at rest have %d goroutines after %d refreshes", pods, got, n.refreshed["0"])
		}
	})
}

// work notes when it is done. It takes a second.
type work struct {
	timed
	began time.Time
	done  []time.Duration
	// atOnce is how often it is being done, and most the highest of that.
	atOnce, most int
}

func (w *work) do(ctx context.Context) {
	w.atOnce++
	w.most = max(w.most, w.atOnce)
	w.done = append(w.done, time.Since(w.began))
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	w.atOnce--
}

func TestTimedWork(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		act  func(w *work, begin func())
		want []time.Duration
	}{
		"the earliest counts": {
			func(w *work, begin func()) { begin(); w.due(3 * s); w.due(2 * s); w.due(4 * s) }, []time.Duration{2 * s},
		},
		"what was due before it begins is done at once": {
			func(w *work, begin func()) { w.due(0); time.Sleep(3 * s); begin() }, []time.Duration{3 * s},
		},
		"what is due later than it begins is done then": {
			func(w *work, begin func()) { w.due(2 * s); time.Sleep(s); begin() }, []time.Duration{2 * s},
		},
		"cleared": {
			func(w *work, begin func()) { begin(); w.due(s); w.clear(); w.due(3 * s) }, []time.Duration{3 * s},
		},
		"due again while it is done": {
			func(w *work, begin func()) {
				begin()
				w.due(0)
				time.Sleep(s / 4)
				w.due(0)
				w.due(s / 4)
			}, []time.Duration{0, s},
		},
		"due again after it was done": {
			func(w *work, begin func()) {
				begin()
				w.due(0)
				time.Sleep(s / 2)
				w.due(3 * s)
			}, []time.Duration{0, 3*s + s/2},
		},
		"begun twice": {
			func(w *work, begin func()) { begin(); begin(); w.due(s) }, []time.Duration{s},
		},
		"ended": {
			func(w *work, begin func()) { begin(); w.due(s); w.end(); w.due(s) }, nil,
		},
		"ended before it begins": {
			func(w *work, begin func()) { w.due(s); w.cancel(); begin(); w.due(s) }, nil,
		},
		"canceled while it is done and due again": {
			func(w *work, begin func()) { begin(); w.due(0); time.Sleep(s / 2); w.due(0); w.cancel() }, []time.Duration{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, of := &work{began: time.Now()}, newTasks()
				c.act(w, func() { w.begin(t.Context(), of, w.do) })
				time.Sleep(10 * s)
				synctest.Wait()
				if !slices.Equal(w.done, c.want) || w.most > 1 {
					t.Errorf("done at %v, at most %d at one time; want %v", w.done, w.most, c.want)
				}
				if len(of.running) > 0 {
					t.Errorf("%d tasks run", len(of.running))
				}
			})
		})
	}
}

// TestTheEndOfTimedWorkIsAwaited: what it uses may go then.
func TestTheEndOfTimedWorkIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, of := &work{began: time.Now()}, newTasks()
		w.begin(t.Context(), of, w.do)
		w.due(0)
		synctest.Wait()
		if w.atOnce != 1 {
			t.Fatal("it is not being done")
		}
		w.end()
		if w.atOnce != 0 || time.Since(w.began) > 0 {
			t.Errorf("its end returns after %v, while %d are done", time.Since(w.began), w.atOnce)
		}
		of.end()
	})
}
