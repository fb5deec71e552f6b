package assignment

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/proto"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func loads(weights map[string]float64, at map[string]string) map[string]float64 {
	l := map[string]float64{}
	for uid, r := range at {
		l[r] += weights[uid]
	}
	return l
}

func moved(before, after map[string]string) int {
	n := 0
	for uid, r := range before {
		if after[uid] != r {
			n++
		}
	}
	return n
}

func TestBalanceIsEvenAndMovesLittle(t *testing.T) {
	weights := map[string]float64{}
	for i := range 90 {
		weights[fmt.Sprintf("pod-%d", i)] = 2
	}
	one := Balance(weights, nil, []string{"0"}, nil)
	two := Balance(weights, one, []string{"0", "1"}, nil)
	three := Balance(weights, two, []string{"0", "1", "2"}, nil)
	for _, test := range []struct {
		name          string
		before, after map[string]string
		each          float64
		moves         int
	}{
		{"one", nil, one, 180, 0}, {"a second joins", one, two, 90, 45}, {"a third joins", two, three, 60, 30},
	} {
		for r, l := range loads(weights, test.after) {
			if l < test.each*0.9 || l > test.each*1.1 {
				t.Errorf("%s: replica %s has %v, want about %v", test.name, r, l, test.each)
			}
		}
		if n := moved(test.before, test.after); n > test.moves {
			t.Errorf("%s: %d pods moved, want %d at most", test.name, n, test.moves)
		}
	}
	left := Balance(weights, three, []string{"0", "2"}, nil)
	for uid, r := range three {
		if r != "1" && left[uid] != r {
			t.Errorf("%s moved from %s, which lives", uid, r)
		}
	}
	if got := Balance(weights, left, nil, nil); !maps.Equal(got, left) {
		t.Error("pods moved while nobody lives")
	}
	if got := Balance(weights, nil, nil, nil); len(got) != 0 {
		t.Errorf("pods were assigned to nobody: %v", got)
	}
}

// Who lives keeps what it has, but only a taker gets anything.
func TestBalanceGivesToTakers(t *testing.T) {
	weights := map[string]float64{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
	current := map[string]string{"a": "0", "b": "0", "c": "0", "d": "1", "e": "gone"}
	for _, test := range []struct {
		takers []string
		want   map[string]string
	}{
		{[]string{"0"}, map[string]string{"a": "0", "b": "0", "c": "0", "d": "1", "e": "0"}},
		{[]string{"1"}, map[string]string{"a": "0", "b": "0", "c": "0", "d": "1", "e": "1"}},
		{nil, map[string]string{"a": "0", "b": "0", "c": "0", "d": "1", "e": "1"}},
	} {
		if got := Balance(weights, current, []string{"0", "1"}, test.takers); !maps.Equal(got, test.want) {
			t.Errorf("takers %v: %v, want %v", test.takers, got, test.want)
		}
	}
}

// Whatever comes and goes: every pod is with a replica that lives, no load is further from the mean
// than the heaviest pod and the allowed unevenness, and to do it again changes nothing.
func TestBalanceAlways(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		weights, current := map[string]float64{}, map[string]string{}
		heaviest := 0.0
		for i := range random.IntN(80) {
			w := float64(1+random.IntN(3)) / float64(1+random.IntN(10))
			weights[fmt.Sprint(i)] = w
			heaviest = max(heaviest, w)
			current[fmt.Sprint(i)] = fmt.Sprint(random.IntN(5))
		}
		var alive []string
		for i := range 1 + random.IntN(4) {
			alive = append(alive, fmt.Sprint(i))
		}
		got := Balance(weights, current, alive, nil)
		total := 0.0
		for uid, w := range weights {
			total += w
			if !slices.Contains(alive, got[uid]) {
				t.Fatalf("seed %d: %s is with %q", seed, uid, got[uid])
			}
		}
		l := loads(weights, got)
		for _, a := range alive {
			for _, b := range alive {
				if gap := l[a] - l[b]; gap > 2*heaviest+unevenness*total/float64(len(alive))+1e-9 {
					t.Fatalf("seed %d: loads %v, heaviest %v", seed, l, heaviest)
				}
			}
		}
		if again := Balance(weights, got, alive, nil); !maps.Equal(again, got) {
			t.Fatalf("seed %d: it does not come to rest", seed)
		}
	}
}

func TestWeight(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{StartupProbe: &v1.Probe{PeriodSeconds: 4}}},
		Containers:     []v1.Container{{ReadinessProbe: &v1.Probe{PeriodSeconds: 1}, LivenessProbe: &v1.Probe{PeriodSeconds: 2}}},
	}}
	if got := Weight(p); got != 1.75 {
		t.Errorf("weight %v", got)
	}
}

// bus is the part of the bus that an assigner sees.
type bus struct {
	mu       sync.Mutex
	synced   bool
	beats    map[string]*busv1.Heartbeat
	received map[string]time.Time
	written  map[string]*podsyncv1.Assignment
	kept     map[string]*podsyncv1.Assignment
}

func (b *bus) All() map[string]*busv1.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.beats)
}
func (b *bus) Synced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.synced
}
func (b *bus) Received(key string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.received[key]
}
func (b *bus) Put(key string, m proto.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.written[key], _ = m.(*podsyncv1.Assignment)
}
func (b *bus) Delete(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.written, key)
}
func (b *bus) Complete() {}

func (b *bus) snapshot() map[string]*podsyncv1.Assignment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.written)
}

type kept struct{ *bus }

func (k kept) Get(key string) (*podsyncv1.Assignment, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.kept[key]
	return a, ok
}

func (b *bus) beat(replica string, pid int32, turns uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats["prober."+replica] = &busv1.Heartbeat{Pid: pid, Turns: turns}
	b.received["prober."+replica] = time.Now()
}

func (b *bus) share() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[string]int{}
	for _, a := range b.written {
		n[a.GetReplica()]++
	}
	return n
}

func (b *bus) setSynced(synced bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.synced = synced
}

// beating sends a replica's heartbeats every 5 s until stopped.
func (b *bus) beating(a *Assigner, replica string, pid int32) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for turns := uint64(1); ; turns++ {
			b.beat(replica, pid, turns)
			a.Beat()
			select {
			case <-ctx.Done():
				return
			case <-time.After(5 * time.Second):
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

func newBus() *bus {
	return &bus{
		synced: true, beats: map[string]*busv1.Heartbeat{}, received: map[string]time.Time{},
		written: map[string]*podsyncv1.Assignment{}, kept: map[string]*podsyncv1.Assignment{},
	}
}

func newAssigner(b *bus) (a *Assigner, stop func()) {
	a = New(Options{Writer: b, Known: kept{b}, Heartbeats: b, Changed: func(types.UID) {}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return a, func() { cancel(); <-done }
}

func somePods(a *Assigner, n int) {
	for i := range n {
		a.Set(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("pod-%d", i))},
			Spec:       v1.PodSpec{Containers: []v1.Container{{ReadinessProbe: &v1.Probe{PeriodSeconds: 1}}}},
		})
	}
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestReplicasJoinDieAndHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 12)
		pass(5 * time.Second)
		if n := len(b.share()); n != 0 {
			t.Fatalf("assigned to %v before there is a replica", b.share())
		}
		defer b.beating(a, "0", 1)()
		pass(100 * time.Millisecond)
		stop1 := b.beating(a, "1", 2)
		pass(100 * time.Millisecond)
		if got := b.share(); got["0"] != 6 || got["1"] != 6 {
			t.Fatalf("two replicas share %v", got)
		}
		pass(time.Minute)

		// A death that the bus saw.
		stop1()
		a.Lost("1")
		pass(2 * time.Second)
		if got := b.share(); got["0"] != 12 {
			t.Fatalf("2 s after the death of one: %v", got)
		}
		stop1 = b.beating(a, "1", 3)
		pass(time.Second)
		if got := b.share(); got["1"] != 6 {
			t.Fatalf("after its return: %v", got)
		}

		// A restart that takes less than a moment moves nothing.
		generations := b.snapshot()
		stop1()
		a.Lost("1")
		pass(500 * time.Millisecond)
		stop1 = b.beating(a, "1", 4)
		pass(10 * time.Second)
		if !maps.Equal(generations, b.snapshot()) {
			t.Fatal("pods moved at a restart")
		}

		// A hang: no heartbeat any more, and the connection still open.
		stop1()
		pass(12 * time.Second)
		if got := b.share(); got["0"] != 12 {
			t.Fatalf("12 s after the hang of one: %v", got)
		}
	})
}

// A replica that dies again and again as soon as it is there loses its pods once, and gets none back
// before it has lived for a while.
func TestAReplicaThatDoesNotStayGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 12)
		defer b.beating(a, "0", 1)()
		stop1 := b.beating(a, "1", 2)
		pass(time.Minute)
		if got := b.share(); got["0"] != 6 || got["1"] != 6 {
			t.Fatalf("two replicas share %v", got)
		}
		stop1()
		a.Lost("1")
		began := time.Now()
		var moved time.Time
		generations := b.snapshot()
		pid := int32(2)
		for range 30 {
			pass(400 * time.Millisecond)
			pid++
			stop1 = b.beating(a, "1", pid)
			pass(300 * time.Millisecond)
			stop1()
			a.Lost("1")
			pass(50 * time.Millisecond)
			a.Lost("1") // another that did not even come to its first sign
			synctest.Wait()
			switch now := b.snapshot(); {
			case maps.Equal(now, generations):
			case moved.IsZero():
				generations, moved = now, time.Now()
			default:
				t.Fatalf("%s after its first end pods move again: %v", time.Since(began), b.share())
			}
		}
		if got := b.share(); got["0"] != 12 || moved.Sub(began) > 2*time.Second {
			t.Fatalf("shares %v, moved after %s", got, moved.Sub(began))
		}
		defer b.beating(a, "1", pid+1)()
		pass(4 * time.Second)
		if got := b.share(); got["0"] != 12 {
			t.Fatalf("it gets pods before it has lived for a while: %v", got)
		}
		pass(2 * time.Second)
		if got := b.share(); got["0"] != 6 || got["1"] != 6 {
			t.Fatalf("when it has: %v", got)
		}
	})
}

// A restart that comes as far as the bus and dies there puts nothing off.
func TestLostAgainIsLostSinceTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 12)
		defer b.beating(a, "0", 1)()
		stop1 := b.beating(a, "1", 2)
		pass(time.Minute)
		stop1()
		for range 4 {
			a.Lost("1")
			pass(250 * time.Millisecond)
		}
		if got := b.share(); got["0"] != 12 {
			t.Fatalf("1 s after its end: %v", got)
		}
	})
}

// Nobody else being there, the one that does not stay has all pods whenever it lives.
func TestTheOnlyReplicaHasAllPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 3)
		for pid := range int32(5) {
			stop0 := b.beating(a, "0", pid+1)
			pass(300 * time.Millisecond)
			stop0()
			a.Lost("0")
			pass(time.Second)
		}
		if got := b.share(); got["0"] != 3 {
			t.Fatalf("shares %v", got)
		}
		somePods(a, 5)
		defer b.beating(a, "0", 9)()
		pass(time.Second)
		if got := b.share(); got["0"] != 5 {
			t.Fatalf("with more pods: %v", got)
		}
	})
}

// A loop that stands still is a hang, though heartbeats come.
func TestALoopThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 4)
		defer b.beating(a, "0", 1)()
		for range 5 {
			b.beat("1", 2, 7)
			a.Beat()
			pass(5 * time.Second)
		}
		if got := b.share(); got["0"] != 4 {
			t.Fatalf("shares %v", got)
		}
	})
}

func TestNobodyDiesWhileTheBusIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 4)
		stop0, stop1 := b.beating(a, "0", 1), b.beating(a, "1", 2)
		pass(time.Second)
		before := maps.Clone(b.written)
		b.setSynced(false)
		stop0()
		stop1()
		a.Lost("1")
		pass(time.Minute)
		b.setSynced(true)
		defer b.beating(a, "0", 1)()
		defer b.beating(a, "1", 2)()
		pass(10 * time.Second)
		if !maps.Equal(before, b.written) {
			t.Fatalf("pods moved: %v", b.share())
		}
	})
}

// A new podsync finds what the one before assigned, and its generations are younger.
func TestAssignmentsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		b.setSynced(false)
		old := &podsyncv1.Assignment{Replica: "1", Generation: uint64(time.Now().Add(time.Hour).UnixNano())}
		b.kept["pod-0"] = old
		a, stop := newAssigner(b)
		defer stop()
		somePods(a, 2)
		defer b.beating(a, "0", 1)()
		defer b.beating(a, "1", 2)()
		pass(5 * time.Second)
		if len(b.share()) != 0 {
			t.Fatalf("assigned before the bus was read: %v", b.share())
		}
		b.setSynced(true)
		pass(2 * time.Second)
		if got := b.written["pod-0"]; got != old {
			t.Errorf("pod-0 has %v", got)
		}
		if got := b.written["pod-1"]; got.GetReplica() != "0" || got.GetGeneration() <= old.GetGeneration() {
			t.Errorf("pod-1 has %v", got)
		}
		a.Forget("pod-1")
		if _, ok := b.written["pod-1"]; ok {
			t.Error("the assignment of a pod that is gone is still there")
		}
	})
}
