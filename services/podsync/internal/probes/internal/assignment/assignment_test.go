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
	"github.com/microlet/microlet/services/internal/service"
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
		t.Error("pods moved while no replica lives")
	}
	if got := Balance(weights, nil, nil, nil); len(got) != 0 {
		t.Errorf("pods were assigned to no replica: %v", got)
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
		Containers: []v1.Container{{
			ReadinessProbe: &v1.Probe{PeriodSeconds: 1},
			LivenessProbe:  &v1.Probe{PeriodSeconds: 2},
		}},
	}}
	if got := Weight(p); got != 1.75 {
		t.Errorf("weight %v", got)
	}
}

// bus is the part of the bus that an assigner sees.
type bus struct {
	mu       sync.Mutex
	looks    int // at the heartbeats
	synced   bool
	beats    map[string]*busv1.Heartbeat
	received map[string]time.Time
	written  map[string]*podsyncv1.Assignment
	kept     map[string]*podsyncv1.Assignment
}

func (b *bus) All() map[string]*busv1.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks++
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

func newBus() *bus {
	return &bus{
		synced: true, beats: map[string]*busv1.Heartbeat{}, received: map[string]time.Time{},
		written: map[string]*podsyncv1.Assignment{}, kept: map[string]*podsyncv1.Assignment{},
	}
}

// scene is an assigner on a bus, in a bubble.
type scene struct {
	*bus
	*Assigner
	t *testing.T
}

// newScene runs an assigner, which has so many pods, until the bubble ends.
func newScene(t *testing.T, b *bus, pods int) *scene {
	s := &scene{bus: b, t: t, Assigner: New(Options{
		Writer:     b,
		Known:      kept{b},
		Heartbeats: b,
		Changed:    func(types.UID) {},
		Log:        slog.New(slog.DiscardHandler),
		Metrics:    prometheus.NewRegistry(),
	})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	s.have(pods)
	return s
}

// twoReplicas is a scene in which two replicas have lived for a minute; the second one's heartbeats can be stopped.
func twoReplicas(t *testing.T, pods int) (s *scene, stop1 func()) {
	t.Helper()
	s = newScene(t, newBus(), pods)
	pass(5 * time.Second)
	s.shares("before there is a replica", nil)
	s.beating("0", 1)
	pass(100 * time.Millisecond)
	stop1 = s.beating("1", 2)
	pass(100 * time.Millisecond)
	s.shares("two replicas that have come", map[string]int{"0": pods / 2, "1": pods / 2})
	pass(time.Minute)
	return s, stop1
}

// have sets the pods that there are.
func (s *scene) have(pods int) {
	for i := range pods {
		s.Set(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("pod-%d", i))},
			Spec:       v1.PodSpec{Containers: []v1.Container{{ReadinessProbe: &v1.Probe{PeriodSeconds: 1}}}},
		})
	}
}

// beating sends a replica's heartbeats every 5 s until stopped.
func (s *scene) beating(replica string, pid int32) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for turns := uint64(1); ; turns++ {
			s.beat(replica, pid, turns)
			s.Beat()
			select {
			case <-ctx.Done():
				return
			case <-time.After(5 * time.Second):
			}
		}
	})
	stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(stop)
	return stop
}

// shares demands how many pods each replica has.
func (s *scene) shares(when string, want map[string]int) {
	s.t.Helper()
	if got := s.share(); !maps.Equal(got, want) {
		s.t.Fatalf("%s: the replicas have %v pods, want %v", when, got, want)
	}
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// A prober can put heartbeats of thousands of replicas, and connect under their names.
func TestReplicasThatCannotBeGetNoPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, newBus(), 12)
		for i := range 1000 {
			for _, replica := range []string{fmt.Sprint(service.MaxReplicas + i), fmt.Sprint("r", i), fmt.Sprintf("0%d", i)} {
				s.beat(replica, 7, 1)
				s.Lost(replica)
			}
		}
		s.Beat()
		pass(time.Second)
		s.shares("replicas that cannot be", nil)
		if len(s.replicas.seen) != 0 || len(s.replicas.gone) != 0 {
			t.Errorf("%d replicas and %d lost ones are remembered", len(s.replicas.seen), len(s.replicas.gone))
		}
		s.beating(fmt.Sprint(service.MaxReplicas-1), 1)
		pass(time.Second)
		s.shares("the last replica that can be", map[string]int{fmt.Sprint(service.MaxReplicas - 1): 12})
	})
}

// TestHeartbeatsWithoutEnd have podsync look at the replicas some times a second.
func TestHeartbeatsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		s := newScene(t, b, 12)
		looks := func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.looks
		}
		before := looks()
		const seconds = 10
		for range 1000 * seconds {
			s.Beat()
			pass(time.Millisecond)
		}
		if got := looks() - before; got > 3*turnRate*seconds { // two for each turn
			t.Errorf("%d looks within %d s", got, seconds)
		}
	})
}

func TestReplicasJoinDieAndHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop1 := twoReplicas(t, 12)

		// A death that the bus saw.
		stop1()
		s.Lost("1")
		pass(2 * time.Second)
		s.shares("2 s after the death of one", map[string]int{"0": 12})
		stop1 = s.beating("1", 3)
		pass(time.Second)
		s.shares("after its return", map[string]int{"0": 6, "1": 6})

		// A restart that takes less than a moment moves nothing.
		generations := s.snapshot()
		stop1()
		s.Lost("1")
		pass(500 * time.Millisecond)
		stop1 = s.beating("1", 4)
		pass(10 * time.Second)
		if !maps.Equal(generations, s.snapshot()) {
			t.Fatal("pods moved at a restart")
		}

		// A hang: no heartbeat any more, and the connection still open.
		stop1()
		pass(12 * time.Second)
		s.shares("12 s after the hang of one", map[string]int{"0": 12})
	})
}

// A replica that dies again and again as soon as it is there loses its pods once, and gets none back
// before it has lived for a while.
func TestAReplicaThatDoesNotStayGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop1 := twoReplicas(t, 12)
		stop1()
		s.Lost("1")
		began := time.Now()
		var moved time.Time
		generations := s.snapshot()
		pid := int32(2)
		for range 30 {
			pass(400 * time.Millisecond)
			pid++
			stop1 = s.beating("1", pid)
			pass(300 * time.Millisecond)
			stop1()
			s.Lost("1")
			pass(50 * time.Millisecond)
			s.Lost("1") // another that did not even come to its first sign
			synctest.Wait()
			switch now := s.snapshot(); {
			case maps.Equal(now, generations):
			case moved.IsZero():
				generations, moved = now, time.Now()
			default:
				t.Fatalf("%s after its first end pods move again: %v", time.Since(began), s.share())
			}
		}
		if got := s.share(); got["0"] != 12 || moved.Sub(began) > 2*time.Second {
			t.Fatalf("shares %v, moved after %s", got, moved.Sub(began))
		}
		s.beating("1", pid+1)
		pass(4 * time.Second)
		s.shares("before it has lived for a while", map[string]int{"0": 12})
		pass(2 * time.Second)
		s.shares("when it has", map[string]int{"0": 6, "1": 6})
	})
}

// A restart that comes as far as the bus and dies there puts nothing off.
func TestLostAgainIsLostSinceTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop1 := twoReplicas(t, 12)
		stop1()
		for range 4 {
			s.Lost("1")
			pass(250 * time.Millisecond)
		}
		s.shares("1 s after its end", map[string]int{"0": 12})
	})
}

// Without another replica, the one that does not stay has all pods whenever it lives.
func TestTheOnlyReplicaHasAllPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, newBus(), 3)
		for pid := range int32(5) {
			stop0 := s.beating("0", pid+1)
			pass(300 * time.Millisecond)
			stop0()
			s.Lost("0")
			pass(time.Second)
		}
		s.shares("after five ends", map[string]int{"0": 3})
		s.have(5)
		s.beating("0", 9)
		pass(time.Second)
		s.shares("with more pods", map[string]int{"0": 5})
	})
}

// A loop that stands still is a hang, though heartbeats come.
func TestALoopThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, newBus(), 4)
		s.beating("0", 1)
		for range 5 {
			s.beat("1", 2, 7)
			s.Beat()
			pass(5 * time.Second)
		}
		s.shares("while the other's loop stands still", map[string]int{"0": 4})
	})
}

func TestNoReplicaDiesWhileTheBusIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, newBus(), 4)
		stop0, stop1 := s.beating("0", 1), s.beating("1", 2)
		pass(time.Second)
		before := maps.Clone(s.written)
		s.setSynced(false)
		stop0()
		stop1()
		s.Lost("1")
		pass(time.Minute)
		s.setSynced(true)
		s.beating("0", 1)
		s.beating("1", 2)
		pass(10 * time.Second)
		if !maps.Equal(before, s.written) {
			t.Fatalf("pods moved: %v", s.share())
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
		s := newScene(t, b, 2)
		s.beating("0", 1)
		s.beating("1", 2)
		pass(5 * time.Second)
		s.shares("before the bus was read", nil)
		s.setSynced(true)
		pass(2 * time.Second)
		if got := s.written["pod-0"]; got != old {
			t.Errorf("pod-0 has %v", got)
		}
		if got := s.written["pod-1"]; got.GetReplica() != "0" || got.GetGeneration() <= old.GetGeneration() {
			t.Errorf("pod-1 has %v", got)
		}
		s.Forget("pod-1")
		if _, ok := s.written["pod-1"]; ok {
			t.Error("the assignment of a pod that is gone is still there")
		}
	})
}
