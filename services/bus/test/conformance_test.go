package test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// bound is how long anything may take on a busy machine; on an idle one a bus is back within a second.
const bound = time.Minute

type (
	value = wrapperspb.StringValue
	view  = *bus.View[*value]
)

// world is every role's client on one bus, with a writer of all that it owns and a view of all that it reads.
type world struct {
	t     *testing.T
	node  *node
	peers map[role.Role]*peer
	views map[string]map[role.Role]view
	// wants is what the writers hold: bucket, key, value.
	wants map[string]map[string]string
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, node: newNode(t), peers: map[role.Role]*peer{},
		views: map[string]map[role.Role]view{}, wants: map[string]map[string]string{},
	}
	for _, r := range role.All() {
		w.peers[r] = w.node.peer(r, "0", "", func(c *bus.Client) {
			for _, b := range subject.Buckets() {
				if b.ReadableBy(r) {
					if w.views[b.Name] == nil {
						w.views[b.Name] = map[role.Role]view{}
					}
					w.views[b.Name][r] = bus.Watch[value](c, b.Name, ">", nil)
				}
			}
		})
	}
	return w
}

// keys are n keys for a pattern of the contract; a pattern without a wildcard has one.
func keys(pattern string, n int) []string {
	if !strings.Contains(pattern, "*") {
		return []string{pattern}
	}
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(pattern, "*", fmt.Sprintf("k%d", i)))
	}
	return all
}

func (w *world) put(b, key string, owner role.Role, val string) {
	if w.wants[b] == nil {
		w.wants[b] = map[string]string{}
	}
	w.wants[b][key] = val
	w.peers[owner].Own(b).Put(key, wrapperspb.String(val))
}

func (w *world) remove(b, key string, owner role.Role) {
	delete(w.wants[b], key)
	w.peers[owner].Own(b).Delete(key)
}

// each calls f for every grant of every bucket.
func each(f func(b subject.Bucket, g subject.Grant)) {
	for _, b := range subject.Buckets() {
		for _, g := range b.Grants {
			f(b, g)
		}
	}
}

func holds(v view) map[string]string {
	got := map[string]string{}
	for key, m := range v.All() {
		got[key] = m.GetValue()
	}
	return got
}

// current reports whether every reader of every bucket holds exactly what its writers do, in sync.
func (w *world) current() bool {
	for b, views := range w.views {
		for _, v := range views {
			if !v.Synced() || !maps.Equal(holds(v), w.wants[b]) {
				return false
			}
		}
	}
	return true
}

func (w *world) await(what string) time.Duration {
	w.t.Helper()
	current := false
	defer func() {
		if current {
			return
		}
		for b, views := range w.views {
			for r, v := range views {
				if got := holds(v); !v.Synced() || !maps.Equal(got, w.wants[b]) {
					w.t.Errorf("%s: %s of %s: synced %v, has %v, want %v", what, b, r, v.Synced(), got, w.wants[b])
				}
			}
		}
	}()
	return proctest.Await(w.t, bound, what+": everyone is current",
		func() bool { current = w.current(); return current })
}

// The bus is killed under every bucket of the contract, comes back on its store, and then on an empty
// one. Readers keep what they hold meanwhile, and afterwards hold what the writers do.
func TestBusKilledUnderEveryBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	each(func(b subject.Bucket, g subject.Grant) {
		for _, key := range keys(g.Pattern, 3) {
			w.put(b.Name, key, g.Owner, "first")
		}
		w.peers[g.Owner].Own(b.Name).Complete()
	})
	t.Logf("first values: everyone current after %v", w.await("first values"))
	for b := range w.wants {
		if len(w.views[b]) == 0 {
			t.Errorf("bucket %s has no reader in this test", b)
		}
	}

	for round, how := range []string{"same store", "same store", "empty store"} {
		before := map[string]map[string]string{}
		for b, m := range w.wants {
			before[b] = maps.Clone(m)
		}
		w.node.bus.Kill()
		for _, p := range w.peers {
			proctest.Await(t, bound, "clients notice that the bus is gone", func() bool { return !p.Connected() })
		}
		each(func(b subject.Bucket, g subject.Grant) {
			all := keys(g.Pattern, 3)
			w.put(b.Name, all[0], g.Owner, fmt.Sprintf("while away %d", round))
			if len(all) > 1 {
				w.remove(b.Name, all[1], g.Owner)
				w.put(b.Name, strings.ReplaceAll(g.Pattern, "*", fmt.Sprintf("new%d", round)), g.Owner, "new")
			}
		})
		for b, views := range w.views {
			for r, v := range views {
				proctest.Await(t, bound, "views know that they are not in sync", func() bool { return !v.Synced() })
				if got := holds(v); !maps.Equal(got, before[b]) {
					t.Errorf("%s of %s has %v while the bus is away, want %v", b, r, got, before[b])
				}
			}
		}
		if how == "empty store" {
			w.node.newBoot()
		}
		start := time.Now()
		w.node.start()
		up := time.Since(start)
		t.Logf("%s: bus up after %v, everyone current %v later", how, up, w.await(how))
		each(func(b subject.Bucket, g subject.Grant) {
			if all := keys(g.Pattern, 3); len(all) > 1 {
				w.put(b.Name, all[1], g.Owner, "back")
			}
			w.put(b.Name, keys(g.Pattern, 3)[0], g.Owner, fmt.Sprintf("after %d", round))
		})
		t.Logf("%s: changes after the return heard after %v", how, w.await("changes after "+how))
	}
	for r, p := range w.peers {
		for _, name := range []string{"microlet_bus_denied_total", "microlet_bus_entries_rejected_total"} {
			if got := p.metric(name); got != 0 {
				t.Errorf("%s of %s is %v", name, r, got)
			}
		}
		if got := p.metric("microlet_bus_watch_restarts_total", "reason", "stalled"); got != 0 {
			t.Errorf("%s took %v working watches for stalled", r, got)
		}
	}
}

// The bus is killed while every writer writes. What it had acknowledged is in its store when it comes
// back, also for a reader that was not there before and with every writer dead.
func TestAcknowledgedValuesSurvive(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.peer(role.Podsync, "0", "", nil)
	pods := p.Own(subject.Pods)
	const count = 200
	for i := range count {
		pods.Put(subject.PodKey(fmt.Sprintf("pod-%d", i)), wrapperspb.String(strings.Repeat("x", 2000)))
	}
	proctest.Await(t, bound, "acknowledged", func() bool { return pods.Pending() == 0 })
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				p.Own(subject.PodStatus).Put(subject.PodKey(fmt.Sprintf("pod-%d", i%10)),
					wrapperspb.String(fmt.Sprint(i)))
			}
		}
	})
	proctest.Await(t, bound, "statuses flow",
		func() bool { return p.metric("microlet_bus_puts_total", "bucket", subject.PodStatus) > 100 })
	n.bus.Kill()
	close(stop)
	wg.Wait()
	p.close()
	n.start()
	var v view
	n.peer(role.Prober, "0", "", func(c *bus.Client) { v = bus.Watch[value](c, subject.Pods, ">", nil) })
	proctest.Await(t, bound, "a new reader is in sync", v.Synced)
	if got := len(v.All()); got != count {
		t.Errorf("%d of %d acknowledged values are there after SIGKILL", got, count)
	}
}

// A service that died leaves keys. They stay until its next life says what it has, and its replica's
// keys stay anyway.
func TestGhostsGoAtTheMarkAndOnlyTheWritersOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var v view
	n.peer(role.Podsync, "0", "", func(c *bus.Client) { v = bus.Watch[value](c, subject.ProbeResults, ">", nil) })
	first, other := n.peer(role.Prober, "a", "", nil), n.peer(role.Prober, "b", "", nil)
	for i := range 3 {
		first.Own(subject.ProbeResults).Put(subject.ProbeResultKey(fmt.Sprintf("p%d", i), "c", "liveness"),
			wrapperspb.String("a"))
	}
	first.Own(subject.ProbeResults).Complete()
	other.Own(subject.ProbeResults).Put(subject.ProbeResultKey("p9", "c", "liveness"), wrapperspb.String("b"))
	other.Own(subject.ProbeResults).Complete()
	proctest.Await(t, bound, "all four keys", func() bool { return len(v.All()) == 4 })
	first.close()

	second := n.peer(role.Prober, "a", "", nil)
	second.Own(subject.ProbeResults).Put(subject.ProbeResultKey("p0", "c", "liveness"), wrapperspb.String("a again"))
	proctest.Await(t, bound, "the second life is heard", func() bool {
		m, _ := v.Get("p0.c.liveness")
		return m.GetValue() == "a again"
	})
	if got := len(v.All()); got != 4 {
		t.Fatalf("before the mark the reader holds %d keys, want 4: %v", got, holds(v))
	}
	second.Own(subject.ProbeResults).Complete()
	want := map[string]string{"p0.c.liveness": "a again", "p9.c.liveness": "b"}
	proctest.Await(t, bound, "stale keys are dropped", func() bool { return maps.Equal(holds(v), want) })

	// They are gone from the bucket as well: a reader that comes now does not see them at all.
	proctest.Await(t, bound, "the writer retires them", func() bool {
		return second.metric("microlet_bus_puts_total", "bucket", subject.ProbeResults) >= 3
	})
	var late view
	p := n.peer(role.Podsync, "1", "",
		func(c *bus.Client) { late = bus.Watch[value](c, subject.ProbeResults, ">", nil) })
	proctest.Await(t, bound, "a late reader is in sync", late.Synced)
	if got := holds(late); !maps.Equal(got, want) {
		t.Errorf("a late reader holds %v, want %v", got, want)
	}
	if got := p.metric("microlet_bus_stale_keys_dropped_total"); got != 0 {
		t.Errorf("a late reader dropped %v stale keys, which the writer should have deleted", got)
	}
}

// More keys than a page holds, and the largest values.
func TestManyAndLarge(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const count = 1300
	p := n.peer(role.Prober, "0", "", nil)
	w := p.Own(subject.ProbeResults)
	for i := range count {
		w.Put(subject.ProbeResultKey(fmt.Sprintf("pod-%d", i), "c", "readiness"), wrapperspb.String("ok"))
	}
	w.Complete()
	proctest.Await(t, bound, "written", w.Marked)
	var v view
	start := time.Now()
	podsync := n.peer(role.Podsync, "0", "",
		func(c *bus.Client) { v = bus.Watch[value](c, subject.ProbeResults, ">", nil) })
	proctest.Await(t, bound, "in sync", v.Synced)
	t.Logf("%d keys listed %v after the start", count, time.Since(start))
	if got := len(v.All()); got != count {
		t.Errorf("the view holds %d keys, want %d", got, count)
	}

	var pods view
	n.peer(role.NodeAPI, "0", "", func(c *bus.Client) { pods = bus.Watch[value](c, subject.Pods, ">", nil) })
	large := strings.Repeat("m", 11<<20) // a manifest of 10 MB and what the API added to it
	podsync.Own(subject.Pods).Put("large", wrapperspb.String(large))
	podsync.Own(subject.Pods).Put("too-large", wrapperspb.String(strings.Repeat("m", subject.MaxPayload)))
	podsync.Own(subject.Pods).Put("small", wrapperspb.String("s"))
	proctest.Await(t, bound, "large values", func() bool { return len(pods.All()) == 2 })
	if !strings.Contains(podsync.log.String(), "too-large") {
		t.Error("a value that cannot be put is not in the log")
	}
}

// A bus that is stopped and not dead is given up within seconds, and what was under way to it then is
// read by it after what came later by a new connection. The newest value wins all the same.
func TestAStoppedBusIsGivenUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var v view
	n.peer(role.Prober, "0", "", func(c *bus.Client) { v = bus.Watch[value](c, subject.Pods, ">", nil) })
	p := n.peer(role.Podsync, "0", "", nil)
	w := p.Own(subject.Pods)
	w.Put("a", wrapperspb.String("before"))
	w.Put("gone", wrapperspb.String("before"))
	w.Complete()
	proctest.Await(t, bound, "heard", func() bool { return len(v.All()) == 2 && w.Marked() })

	n.bus.Signal(syscall.SIGSTOP)
	w.Put("a", wrapperspb.String("under way"))
	took := proctest.Await(t, bound, "the stopped bus is given up", func() bool { return !p.Connected() })
	t.Logf("a stopped bus is given up after %v", took)
	w.Put("a", wrapperspb.String("after"))
	w.Delete("gone")
	n.bus.Signal(syscall.SIGCONT)
	want := map[string]string{"a": "after"}
	took = proctest.Await(t, bound, "the newest is heard",
		func() bool { return v.Synced() && maps.Equal(holds(v), want) })
	t.Logf("current %v after the bus went on", took)
	proctest.Await(t, bound, "acknowledged", func() bool { return w.Pending() == 0 && w.Marked() })
	var late view
	n.peer(role.Prober, "1", "", func(c *bus.Client) { late = bus.Watch[value](c, subject.Pods, ">", nil) })
	// The comparison that puts it right comes once more after 5 s.
	proctest.Await(t, bound, "the bucket holds the newest",
		func() bool { return late.Synced() && maps.Equal(holds(late), want) })
}
