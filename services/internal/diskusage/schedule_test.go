package diskusage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/testing/childtest"
)

// perEntry is how long a simulated child takes for an entry.
const perEntry = 10 * time.Microsecond

// world simulates file systems and the children that walk there.
type world struct {
	t  *testing.T
	mu sync.Mutex
	// entries has how many a directory has; others are gone.
	entries map[string]int
	// hangs are devices that do not answer; a call there ends when the channel is closed, or when its child is killed
	// if mortal.
	hangs  map[childpool.Lane]chan struct{}
	mortal bool
	broken map[string]string
	dies   string
	full   bool // no child can be started
	mounts childpool.MountPoints

	alive, mostAlive, started int
	looked                    []sample
	order                     []string
}

type sample struct {
	at      time.Time
	entries int
}

func newWorld(t *testing.T) *world {
	return &world{t: t, entries: map[string]int{}, hangs: map[childpool.Lane]chan struct{}{}, broken: map[string]string{},
		mounts: childpool.MountPoints{"/": {Major: 8, Minor: 1}}}
}

// start starts a simulated child.
func (w *world) start() (*childpool.Child, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full {
		return nil, errors.New("no process can be started")
	}
	w.alive++
	w.started++
	w.mostAlive = max(w.mostAlive, w.alive)
	parent, own := childtest.Pipe()
	ended := make(chan struct{})
	c := &childpool.Child{Conn: parent, Kill: func() { _ = own.Close() }, Ended: ended, PID: w.started}
	table, left := childpool.Table{}, map[uint64]int{}
	childpool.Handle(table, measureSlice, func(ctx context.Context, q request) (*answer, error) {
		return w.measure(ctx, c, &q, left)
	})
	go func() {
		defer close(ended)
		_ = childpool.Serve(own, table)
		_ = own.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.alive--
	}()
	return c, nil
}

// measure is what a simulated child does. left has what is left of its walks.
func (w *world) measure(ctx context.Context, c *childpool.Child, q *request, left map[uint64]int) (*answer, error) {
	for _, id := range q.Drop {
		delete(left, id)
	}
	if !w.call(ctx, q.Path) {
		return nil, ctx.Err()
	}
	a, ok := w.serve(q, left)
	if !ok {
		c.Kill()
		return nil, nil
	}
	if len(left) > maxWalks {
		w.t.Errorf("%d walks at a time", len(left))
	}
	return a, nil
}

// call waits as long as the device of the path hangs.
func (w *world) call(ctx context.Context, path string) bool {
	w.mu.Lock()
	hangs, mortal := w.hangs[w.device(path)], w.mortal
	w.mu.Unlock()
	if hangs == nil {
		return true
	}
	if !mortal {
		<-hangs
		return true
	}
	select {
	case <-hangs:
		return true
	case <-ctx.Done(): // it was killed
		return false
	}
}

// device is that of a path.
func (w *world) device(path string) childpool.Lane {
	for ; ; path = filepath.Dir(path) {
		if id, ok := w.mounts[path]; ok {
			return id
		}
	}
}

func (w *world) serve(q *request, left map[uint64]int) (*answer, bool) {
	w.mu.Lock()
	size, ok := w.entries[q.Path]
	broken, dies := w.broken[q.Path], w.dies == q.Path
	w.mu.Unlock()
	a := &answer{Walk: q.Walk, Done: true}
	switch {
	case dies:
		return nil, false
	case !ok:
		a.Gone = true
		return a, true
	case broken != "":
		a.Error = broken
		return a, true
	}
	if _, ok := left[q.Walk]; !ok {
		left[q.Walk] = size
	}
	a.Entries = min(left[q.Walk], q.Entries)
	time.Sleep(time.Duration(a.Entries) * perEntry)
	left[q.Walk] -= a.Entries
	a.Done = left[q.Walk] == 0
	w.mu.Lock()
	w.looked = append(w.looked, sample{time.Now(), a.Entries})
	if a.Done {
		delete(left, q.Walk)
		a.Usage = Usage{InodesUsed: uint64(size)}
		w.order = append(w.order, q.Path)
	}
	w.mu.Unlock()
	return a, true
}

// hang has a device answer nothing from now on, and heal has all answer again.
func (w *world) hang(id childpool.Lane) {
	w.set(func() { w.hangs[id] = make(chan struct{}) })
}

func (w *world) heal() {
	w.set(func() {
		for _, c := range w.hangs {
			close(c)
		}
		clear(w.hangs)
	})
	time.Sleep(time.Second) // for those that were killed to end
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// measurer runs one in this world until the returned function is called.
func (w *world) measurer(c Config) (*Measurer, *bytes.Buffer, func()) {
	log := &bytes.Buffer{}
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	c.Metrics = testMetrics()
	c.start = w.start
	c.mounts = func() (childpool.MountPoints, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.mounts, nil }
	m := New(c)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return m, log, func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) track(m *Measurer, paths ...string) {
	w.t.Helper()
	var dirs []Dir
	for _, p := range paths {
		dirs = append(dirs, Dir{Path: p})
	}
	if err := m.Track(dirs); err != nil {
		w.t.Error(err)
	}
}

func (w *world) add(prefix string, n, entries int) (paths []string) {
	for i := range n {
		p := fmt.Sprintf("/%s%03d", prefix, i)
		w.entries[p] = entries
		paths = append(paths, p)
	}
	return paths
}

// age is that of a figure, or -1.
func age(m *Measurer, path string) time.Duration {
	f, ok := m.Measurement(Dir{Path: path})
	if !ok {
		return -1
	}
	return time.Since(f.Time)
}

// sleep lets time pass, and then all that is to happen at that time happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestALargeDirectoryDelaysNoSmallOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.entries["/large"] = 5_000_000
		small := w.add("small", 100, 50)
		m, _, stop := w.measurer(Config{Budget: 60_000})
		defer stop()
		w.track(m, append(small, "/large")...)
		for range 20 {
			sleep(time.Minute)
			for _, p := range small {
				if a := age(m, p); a < 0 || a > 2*time.Minute {
					t.Fatalf("the figure of %s is %v old", p, a)
				}
			}
		}
		if age(m, "/large") >= 0 {
			t.Error("the large directory has a figure already, of a walk that takes 80 minutes at least")
		}
		sleep(100 * time.Minute)
		if f, _ := m.Measurement(Dir{Path: "/large"}); f.InodesUsed != 5_000_000 {
			t.Errorf("the large directory starves: %+v", f)
		}
	})
}

// However many large directories there are, such as those of one pod with many volumes, the small ones go on.
func TestManyLargeDirectoriesDelayNoSmallOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var large []string
		for i := range 2 * maxWalks {
			large = append(large, fmt.Sprintf("/large-%d", i))
			w.entries[large[i]] = 300_000
		}
		small := w.add("small", 50, 50)
		m, _, stop := w.measurer(Config{Budget: 200_000})
		defer stop()
		w.track(m, append(small, large...)...)
		sleep(2 * time.Minute) // until it is known which ones are large
		for range 20 {
			sleep(time.Minute)
			for _, p := range small {
				if a := age(m, p); a < 0 || a > 2*time.Minute {
					t.Fatalf("the figure of %s is %v old", p, a)
				}
			}
		}
		sleep(time.Hour)
		for _, p := range large {
			if f, _ := m.Measurement(Dir{Path: p}); f.InodesUsed != 300_000 {
				t.Errorf("%s starves: %+v", p, f)
			}
		}
	})
}

func TestBudget(t *testing.T) {
	for _, perMinute := range []int{1000, 60_000, 1_000_000} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			paths := w.add("dir", 20, perMinute)
			m, _, stop := w.measurer(Config{Budget: perMinute})
			w.track(m, paths...)
			sleep(30 * time.Minute)
			stop()
			total := 0
			for i, s := range w.looked {
				total += s.entries
				in := 0
				for _, o := range w.looked[i:] {
					if o.at.Sub(s.at) < time.Minute {
						in += o.entries
					}
				}
				if most := perMinute + perMinute/6 + 2*maxSlice; in > most {
					t.Fatalf("%d entries in a minute, the most is %d", in, most)
				}
			}
			if total < 29*perMinute {
				t.Errorf("%d entries in half an hour: the budget is not used", total)
			}
		})
	}
}

func TestOldestFigureFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		paths := w.add("dir", 30, 20_000) // ten rounds' worth a minute
		m, _, stop := w.measurer(Config{Budget: 60_000})
		w.track(m, paths...)
		sleep(35 * time.Minute)
		stop()
		seen := map[string]int{}
		for _, p := range w.order {
			seen[p]++
			for _, o := range paths {
				if seen[o] < seen[p]-1 {
					t.Fatalf("%s was measured %d times before %s was %d times", p, seen[p], o, seen[o]+1)
				}
			}
		}
		if len(w.order) < 90 {
			t.Errorf("%d walks", len(w.order))
		}
	})
}

func TestChildrenEndWhenNothingIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, _, stop := w.measurer(Config{})
		defer stop()
		sleep(time.Hour)
		if w.started != 0 {
			t.Fatal("a child was started for nothing")
		}
		w.track(m, w.add("dir", 50, 10)...)
		sleep(time.Second)
		if age(m, "/dir000") < 0 {
			t.Error("the first directories wait")
		}
		sleep(10*time.Minute + linger)
		if w.alive != 0 || w.mostAlive != 1 || w.started > 12 {
			t.Errorf("%d children are left, there were up to %d, and %d in all", w.alive, w.mostAlive, w.started)
		}
		w.track(m, w.add("new", 1, 10)...)
		sleep(newWithin + time.Second)
		if age(m, "/new000") < 0 {
			t.Error("a new directory has no figure")
		}
		if age(m, "/dir000") >= 0 {
			t.Error("a directory that is not tracked has a figure")
		}
	})
}

func TestADeviceThatHangsHangsAlone(t *testing.T) {
	for _, mortal := range []bool{true, false} {
		t.Run(fmt.Sprint("mortal ", mortal), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.mortal = mortal
				nfs := childpool.Lane{Major: 0, Minor: 50}
				w.mounts["/nfs"] = nfs
				w.entries["/nfs/a"], w.entries["/nfs/b"] = 5, 5
				local := w.add("local", 50, 10)
				m, log, stop := w.measurer(Config{})
				defer stop()
				w.track(m, append(local, "/nfs/a", "/nfs/b")...)
				sleep(3 * time.Second)
				before, _ := m.Measurement(Dir{Path: "/nfs/a"})

				w.hang(nfs)
				defer w.heal() // else the simulated children would outlive the test
				for range 30 {
					sleep(time.Minute)
					for _, p := range local {
						if a := age(m, p); a < 0 || a > time.Minute+2*silentAfter {
							t.Fatalf("the figure of %s is %v old", p, a)
						}
					}
				}
				if f, ok := m.Measurement(Dir{Path: "/nfs/a"}); !ok || f != before {
					t.Errorf("%+v, want the figure of before: %+v", f, before)
				}
				if w.mostAlive > 2 {
					t.Errorf("%d children at a time", w.mostAlive)
				}
				if got := testutil.ToFloat64(m.metrics.Children.WithLabelValues("abandoned")); !mortal && got != 1 {
					t.Errorf("%v children are abandoned", got)
				}
				if n := testutil.ToFloat64(m.metrics.Walks.WithLabelValues(resultHung)); n == 0 || n > 8 {
					t.Errorf("%v walks hung", n)
				}
				if n := strings.Count(log.String(), "does not answer"); n != 1 && !(mortal && n == 2) {
					t.Errorf("said %d times: %s", n, log)
				}

				w.heal()
				sleep(maxRest + 2*time.Minute)
				for _, p := range []string{"/nfs/a", "/nfs/b"} {
					if a := age(m, p); a < 0 || a > 2*time.Minute {
						t.Errorf("the figure of %s is %v old although it answers again", p, a)
					}
				}
			})
		})
	}
}

// The mounts were read before this one came.
func TestADeviceThatIsMountedOverADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		local := w.add("local", 50, 10)
		w.entries["/late"] = 5
		m, _, stop := w.measurer(Config{})
		defer stop()
		w.track(m, local...)
		sleep(31 * time.Second)
		w.track(m, append(local, "/late")...) // so that the mounts are read at 40 s
		sleep(20 * time.Second)
		nfs := childpool.Lane{Major: 0, Minor: 50}
		w.set(func() { w.mounts = childpool.MountPoints{"/": {Major: 8, Minor: 1}, "/late": nfs} })
		w.hang(nfs)
		defer w.heal()
		for range 10 {
			sleep(time.Minute)
			for _, p := range local {
				if a := age(m, p); a < 0 || a > time.Minute+2*silentAfter {
					t.Fatalf("the figure of %s is %v old", p, a)
				}
			}
		}
	})
}

func TestBoundOnChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounts["/good"] = childpool.Lane{Major: 8, Minor: 2}
		w.entries["/good"] = 10
		defer w.heal()
		paths := []string{"/good"}
		for i := range 40 {
			p := fmt.Sprint("/nfs", i)
			w.mounts[p], w.entries[p] = childpool.Lane{Major: 0, Minor: i}, 1
			w.hang(childpool.Lane{Major: 0, Minor: i})
			paths = append(paths, p)
		}
		m, log, stop := w.measurer(Config{})
		defer stop()
		w.track(m, paths...)
		for range 30 {
			sleep(time.Minute)
			if a := age(m, "/good"); a < 0 || a > 3*time.Minute {
				t.Fatalf("the figure of the device that answers is %v old", a)
			}
		}
		if w.mostAlive > maxChildren {
			t.Errorf("%d children at a time, the most is %d", w.mostAlive, maxChildren)
		}
		if n := strings.Count(log.String(), "only devices that have answered"); n != 1 {
			t.Errorf("said %d times", n)
		}
		w.heal()
		sleep(2 * maxRest)
		for _, p := range paths {
			if a := age(m, p); a < 0 || a > 2*time.Minute {
				t.Errorf("the figure of %s is %v old although it answers again", p, a)
			}
		}
	})
}

// A stop waits for no child that hangs.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hang(childpool.Lane{Major: 8, Minor: 1})
		defer w.heal()
		w.entries["/dir"] = 1
		m, _, stop := w.measurer(Config{})
		w.track(m, "/dir")
		sleep(2 * hungAfter)
		began := time.Now()
		stop()
		if d := time.Since(began); d > stopWithin {
			t.Errorf("the stop took %v", d)
		}
	})
}

func TestWhatGoesAndBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("dir", 3, 10)
		m, log, stop := w.measurer(Config{})
		defer stop()
		w.track(m, "/dir000", "/dir001", "/dir002")
		sleep(time.Second)
		w.set(func() {
			delete(w.entries, "/dir000")
			w.broken["/dir001"] = "input/output error"
			w.dies = "/dir002"
		})
		sleep(20 * time.Minute)
		if age(m, "/dir000") >= 0 {
			t.Error("what is gone has a figure")
		}
		for _, p := range []string{"/dir001", "/dir002"} {
			if a := age(m, p); a < 19*time.Minute {
				t.Errorf("the figure of %s, which cannot be read, is %v old", p, a)
			}
		}
		for _, said := range []string{"input/output error", "the child ended"} {
			if n := strings.Count(log.String(), said); n != 1 {
				t.Errorf("%q was said %d times: %s", said, n, log)
			}
		}
		if n := testutil.ToFloat64(m.metrics.Walks.WithLabelValues(resultFailed)); n < 6 || n > 16 {
			t.Errorf("%v walks failed", n)
		}
		w.set(func() { w.entries["/dir000"] = 10; clear(w.broken); w.dies = "" })
		sleep(maxRest)
		for _, p := range []string{"/dir000", "/dir001", "/dir002"} {
			if a := age(m, p); a < 0 || a > 2*time.Minute {
				t.Errorf("the figure of %s is %v old although it can be read again", p, a)
			}
		}
	})
}

func TestTrackingLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		large := w.add("large", 2*maxWalks, 10_000_000)
		w.entries["/small"] = 100_000
		m, _, stop := w.measurer(Config{Budget: 60_000})
		defer stop()
		w.track(m, large...)
		sleep(5 * time.Minute)
		w.track(m, "/small")
		sleep(3 * time.Minute)
		if a := age(m, "/small"); a < 0 {
			t.Error("there is no figure of the one directory that is tracked")
		}
	})
}

func TestDirsThatCannotBe(t *testing.T) {
	m := New(Config{Metrics: testMetrics(), Log: slog.New(slog.DiscardHandler)})
	bad := []Dir{{Path: "relative"}, {Path: "/not/../clean"}, {Path: "/no\xffutf"}, {Path: "/x", Mode: 7},
		{Path: "/" + strings.Repeat("x", maxPath)}}
	for _, d := range bad {
		if err := m.Track([]Dir{d, {Path: "/good"}}); err == nil {
			t.Errorf("%.100q was taken", d.Path)
		}
		if !slices.Equal(slices.Collect(maps.Keys(m.snapshot())), []Dir{{Path: "/good"}}) {
			t.Error("the good one was not taken")
		}
	}
}
