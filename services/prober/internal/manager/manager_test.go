package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/prober/internal/probe"
	"github.com/microlet/microlet/services/prober/internal/worker"
)

// bucket is one of the bus's.
type bucket[M any] struct {
	mu     sync.Mutex
	values map[string]M
	away   bool
}

func newBucket[M any]() *bucket[M] { return &bucket[M]{values: map[string]M{}} }

func (b *bucket[M]) Get(key string) (M, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.values[key]
	return m, ok
}

func (b *bucket[M]) All() map[string]M {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.values)
}

func (b *bucket[M]) Synced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.away
}

func (b *bucket[M]) put(key string, m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = m
}

func (b *bucket[M]) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.values, key)
}

// Traceparent implements Pods.
func (b *bucket[M]) Traceparent(string) string { return "" }

// node is a bus, containers, and replicas that probe them, in virtual time.
type node struct {
	t           *testing.T
	pods        *bucket[*nodepods.Pod]
	assignments *bucket[*podsyncv1.Assignment]
	results     *bucket[*proberv1.ProbeResult]
	generation  uint64

	mu         sync.Mutex
	bus        int  // how many times it was started
	down       bool // what is said is kept by who says it
	replicas   map[string]*replica
	sick       map[string]bool  // by container id
	failures   map[string]int32 // of liveness in a row, as they truly were, by container id
	longest    map[string]int32
	probes     map[string]int // by container id
	judge      func(key string, r *proberv1.ProbeResult)
	completed  int
	wasRelease []string
}

func newNode(t *testing.T) *node {
	n := &node{
		t:           t,
		pods:        newBucket[*nodepods.Pod](),
		assignments: newBucket[*podsyncv1.Assignment](),
		results:     newBucket[*proberv1.ProbeResult](),
		replicas:    map[string]*replica{},
		sick:        map[string]bool{},
		failures:    map[string]int32{},
		longest:     map[string]int32{},
		probes:      map[string]int{},
	}
	t.Cleanup(n.stopAll)
	return n
}

// Probe implements worker.Prober.
func (n *node) Probe(_ context.Context, t probe.Target) (probe.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.probes[t.ContainerID]++
	sick := n.sick[t.ContainerID]
	if t.Kind == string(worker.Liveness) {
		if !sick {
			n.failures[t.ContainerID] = 0
		} else {
			n.failures[t.ContainerID]++
			n.longest[t.ContainerID] = max(n.longest[t.ContainerID], n.failures[t.ContainerID])
		}
	}
	if sick {
		return probe.Result{Outcome: probe.Failure, Output: "sick"}, nil
	}
	return probe.Result{Outcome: probe.Success}, nil
}

// busID is the bus's, as a client knows it.
func (n *node) busID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return ""
	}
	return fmt.Sprintf("bus-%d", n.bus)
}

func (n *node) stopBus() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
}

// startBus restarts it; the processes that live say what was kept.
func (n *node) startBus() {
	n.mu.Lock()
	n.down, n.bus = false, n.bus+1
	n.mu.Unlock()
	for _, r := range n.living() {
		n.mu.Lock()
		kept := r.kept
		r.kept = map[string]*proberv1.ProbeResult{}
		n.mu.Unlock()
		for key, result := range kept {
			r.Refresh(key, result)
		}
	}
}

func (n *node) setSick(id string, sick bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sick[id] = sick
}

func (n *node) probed(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.probes[id]
}

// replica is a manager that runs.
type replica struct {
	*node
	name    string
	manager *Manager
	metrics *prometheus.Registry
	stop    func()
	dead    bool
	kept    map[string]*proberv1.ProbeResult // said while the bus was down
}

// start starts a replica, or starts it again.
func (n *node) start(name string) *replica {
	r := &replica{node: n, name: name, metrics: prometheus.NewRegistry(), kept: map[string]*proberv1.ProbeResult{}}
	r.manager = New(Options{
		Replica: name, Prober: n, Events: record.NewFakeRecorder(1000), Metrics: NewMetrics(r.metrics),
		Turned: func() {}, Ready: func() {}, Log: slog.New(slog.DiscardHandler),
	},
		Buckets{
			Pods:        n.pods,
			Assignments: n.assignments,
			Known:       n.results,
			Results:     r,
			Bus:         n.busID,
		})
	n.mu.Lock()
	n.replicas[name] = r
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.manager.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	r.stop = func() {
		n.mu.Lock()
		r.dead = true // a killed process says nothing any more
		if n.replicas[name] == r {
			delete(n.replicas, name)
		}
		n.mu.Unlock()
		cancel()
		running.Wait()
	}
	return r
}

func (n *node) stopAll() {
	for _, r := range n.living() {
		r.stop()
	}
}

func (n *node) living() map[string]*replica {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.replicas)
}

func (n *node) changed(uid string, except string) {
	for name, r := range n.living() {
		if name != except {
			r.manager.Changed(uid)
		}
	}
}

// Refresh implements Results.
func (r *replica) Refresh(key string, m proto.Message) {
	result, ok := m.(*proberv1.ProbeResult)
	r.mu.Lock()
	dead, judge := r.dead, r.judge
	kept := ok && r.down
	if kept {
		r.kept[key] = result
	}
	r.mu.Unlock()
	if dead || kept || !ok {
		return
	}
	r.results.put(key, result)
	if judge != nil {
		judge(key, result)
	}
	uid, _, _ := strings.Cut(key, ".")
	r.changed(uid, r.name)
}

// Delete implements Results.
func (r *replica) Delete(key string) { r.results.remove(key) }

// Release implements Results.
func (r *replica) Release(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wasRelease = append(r.wasRelease, key)
}

// Complete implements Results.
func (r *replica) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.completed++
}

// series are a replica's of a pod.
func (r *replica) series(pod string) (names []string) {
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pod" && l.GetValue() == pod {
					names = append(names, f.GetName())
				}
			}
		}
	}
	return names
}

// pod puts a pod with a container that is probed each second.
func (n *node) pod(uid string, failures int32) {
	every := func() *v1.Probe {
		return &v1.Probe{PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: failures}
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "default"},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name:           "c",
			ReadinessProbe: every(),
			LivenessProbe:  every(),
		}}},
	}
	n.pods.put(uid, &nodepods.Pod{Pod: p})
	n.changed(uid, "")
}

// container gives the pod a new container.
func (n *node) container(uid, id string) {
	p, _ := n.pods.Get(uid)
	n.pods.put(uid, &nodepods.Pod{Pod: p.Pod, Reported: true, IPs: []string{"10.0.0.1"}, Containers: []nodepods.Container{{
		Name: "c", ID: id, State: nodepods.Running, Started: time.Now(),
	}}})
	n.changed(uid, "")
}

func (n *node) assign(uid, replica string) {
	n.generation++
	n.assignments.put(uid, &podsyncv1.Assignment{Replica: replica, Generation: n.generation})
	n.changed(uid, "")
}

// assigned is a pod with a running container that a replica is to probe.
func (n *node) assigned(uid, id, replica string, threshold int32) {
	n.pod(uid, threshold)
	n.container(uid, id)
	n.assign(uid, replica)
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// A pod that moves leaves nothing behind but its results, from which the next replica goes on.
func TestAPodMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		zero, one := n.start("0"), n.start("1")
		for _, uid := range []string{"stays", "moves"} {
			n.assigned(uid, "id-"+uid, "0", 3)
		}
		pass(5 * time.Second)
		for _, uid := range []string{"stays", "moves"} {
			// total and duration, of readiness and liveness each
			if got := zero.series(uid); len(got) != 4 {
				t.Errorf("series of %s where it is probed: %q", uid, got)
			}
			if got := one.series(uid); len(got) != 0 {
				t.Errorf("series of %s where it is not: %q", uid, got)
			}
		}
		n.setSick("id-moves", true)
		pass(1500 * time.Millisecond)
		before, _ := n.results.Get("moves.c.liveness")
		if before.GetLast() != proberv1.Outcome_OUTCOME_FAILURE ||
			before.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
			t.Fatalf("before it moves: %v", before)
		}
		n.assign("moves", "1")
		synctest.Wait()
		if got := zero.series("moves"); len(got) != 0 {
			t.Errorf("the replica that gave the pod up has still %q", got)
		}
		if len(n.wasRelease) != 2 {
			t.Errorf("released %q, want both of its results", n.wasRelease)
		}
		if r, ok := n.results.Get("moves.c.liveness"); !ok || r.GetReplica() != "1" ||
			r.GetGeneration() != n.generation || r.GetRun() != before.GetRun() {
			t.Errorf("at the takeover: %v, want it to go on from %v", r, before)
		}
		pass(2 * time.Second)
		if r, _ := n.results.Get("moves.c.liveness"); r.GetResult() != proberv1.Outcome_OUTCOME_FAILURE {
			t.Errorf("after three failures, some before it moved: %v", r)
		}
		if got := one.series("moves"); len(got) != 2 { // nothing but failures
			t.Errorf("series of the pod that came: %q", got)
		}
		if got := zero.series("stays"); len(got) != 4 {
			t.Errorf("series of the pod that stays: %q", got)
		}
	})
}

// A pod that is gone takes its results and its series along.
func TestAPodGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		zero := n.start("0")
		n.assigned("p", "id", "0", 3)
		pass(3 * time.Second)
		if len(n.results.All()) != 2 || len(zero.series("p")) != 4 {
			t.Fatalf("results %v, series %q", n.results.All(), zero.series("p"))
		}
		n.assignments.remove("p")
		n.changed("p", "")
		pass(2 * time.Second)
		if len(zero.series("p")) != 4 {
			t.Error("a missing assignment ended the probes")
		}
		n.pods.remove("p")
		n.changed("p", "")
		probed := n.probed("id")
		pass(3 * time.Second)
		if got := n.results.All(); len(got) != 0 || len(zero.series("p")) != 0 || n.probed("id") != probed {
			t.Errorf("results %v, series %q, %d probes more", got, zero.series("p"), n.probed("id")-probed)
		}
	})
}

// A pod that cannot be read any more is probed as before, and one that never could be read is not.
func TestAPodThatCannotBeReadIsProbedAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		zero := n.start("0")
		n.assigned("p", "id", "0", 3)
		pass(3 * time.Second)
		for _, uid := range []string{"p", "q"} {
			n.pods.put(uid, &nodepods.Pod{Pod: &v1.Pod{}, Err: errors.New("it cannot be read")})
			n.assign(uid, "0")
		}
		probed := n.probed("id")
		pass(3 * time.Second)
		if got := n.probed("id") - probed; got != 6 || len(zero.series("p")) != 4 {
			t.Errorf("%d probes more, series %q", got, zero.series("p"))
		}
		if r, ok := n.results.Get("p.c.liveness"); !ok || r.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
			t.Errorf("the result is %v", r)
		}
	})
}

// Nothing is probed, and nothing is said to be complete, before every bucket was read.
func TestNothingBeforeAllIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.assigned("p", "id", "0", 3)
		n.results.away = true
		n.start("0")
		pass(5 * time.Second)
		if n.probed("id") != 0 || n.completed != 0 {
			t.Fatalf("%d probes, complete %d times", n.probed("id"), n.completed)
		}
		n.results.mu.Lock()
		n.results.away = false
		n.results.mu.Unlock()
		pass(5 * time.Second)
		if n.probed("id") == 0 || n.completed != 1 {
			t.Fatalf("%d probes, complete %d times", n.probed("id"), n.completed)
		}
	})
}

// A word that a replica says late, over the one who has the pod now, is put right.
func TestALateWordIsPutRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start("1")
		n.assigned("p", "id", "0", 3)
		n.assign("p", "1")
		pass(3 * time.Second)
		late := worker.Record{
			ContainerID: "id",
			Result:      proberv1.Outcome_OUTCOME_FAILURE,
			Last:        proberv1.Outcome_OUTCOME_FAILURE,
			Run:         3,
		}
		n.results.put("p.c.liveness", late.Message("0", n.generation-1, n.busID()))
		n.changed("p", "")
		synctest.Wait()
		if r, _ := n.results.Get("p.c.liveness"); r.GetReplica() != "1" ||
			r.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
			t.Errorf("the result is %v", r)
		}
	})
}

// What was found while there was no bus dies with the prober: the next one does not go on from what came before.
func TestNoCountOutlivesTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		zero := n.start("0")
		n.assigned("p", "id", "0", 3)
		pass(2500 * time.Millisecond)
		n.setSick("id", true)
		pass(2 * time.Second)
		result := func() *proberv1.ProbeResult {
			r, _ := n.results.Get("p.c.liveness")
			return r
		}
		if r := result(); r.GetRun() != 2 || r.GetLast() != proberv1.Outcome_OUTCOME_FAILURE {
			t.Fatalf("two failures are %v", r)
		}
		n.stopBus()
		n.setSick("id", false)
		pass(time.Second) // an unreported success
		zero.stop()
		n.startBus()
		n.setSick("id", true)
		n.start("0")
		pass(2 * time.Second)
		if r := result(); r.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS ||
			r.GetLast() != proberv1.Outcome_OUTCOME_FAILURE {
			t.Errorf("after less than three failures in a row: %v", r)
		}
		pass(2 * time.Second)
		if r := result(); r.GetResult() != proberv1.Outcome_OUTCOME_FAILURE {
			t.Errorf("after three failures in a row: %v", r)
		}
	})
}

// In any order in which replicas and the bus die, come back and take over, and however containers end and are replaced,
// the result that restarts a container never comes without failureThreshold failures in a row of this very container
// id. This goes by what podsync would take: results of the newest assignment.
func TestNeverARestartWithoutEnoughFailures(t *testing.T) {
	results := 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			threshold := int32(2 + random.IntN(3))
			n := newNode(t)
			names := []string{"0", "1", "2"}
			for _, name := range names {
				n.start(name)
			}
			reported := map[string]bool{}
			n.judge = func(key string, r *proberv1.ProbeResult) {
				uid, rest, _ := strings.Cut(key, ".")
				a, _ := n.assignments.Get(uid)
				id := r.GetContainerId()
				if rest != "c.liveness" || r.GetResult() != proberv1.Outcome_OUTCOME_FAILURE ||
					a.GetReplica() != r.GetReplica() || a.GetGeneration() != r.GetGeneration() {
					return
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				if !reported[id] {
					reported[id] = true
					results++
				}
				if n.longest[id] < threshold {
					t.Errorf("seed %d: result on %s after %d failures in a row, threshold %d", seed, id, n.longest[id],
						threshold)
				}
			}
			const pods = 4
			ids := make([]int, pods)
			for i := range pods {
				uid := fmt.Sprintf("p%d", i)
				n.assigned(uid, uid+"-0", names[random.IntN(len(names))], threshold)
			}
			for range 150 {
				i := random.IntN(pods)
				uid := fmt.Sprintf("p%d", i)
				id := fmt.Sprintf("%s-%d", uid, ids[i])
				switch what := random.IntN(10); {
				case what == 8:
					n.stopBus()
				case what == 9 && n.busID() == "":
					n.startBus()
				case n.busID() == "" && (what == 0 || what == 2 || what == 3 || what == 4):
					// podsync is not heard, and who comes waits for the bus.
				case what == 0:
					n.assign(uid, names[random.IntN(len(names))])
				case what == 1:
					if r := n.living()[names[random.IntN(len(names))]]; r != nil {
						r.stop()
					}
				case what == 2 || what == 3:
					if name := names[random.IntN(len(names))]; n.living()[name] == nil {
						n.start(name)
					}
				case what == 4:
					ids[i]++
					n.container(uid, fmt.Sprintf("%s-%d", uid, ids[i]))
				case what == 5 || what == 6:
					n.setSick(id, true)
				case what == 7:
					n.setSick(id, false)
				}
				pass(time.Duration(random.IntN(1500)) * time.Millisecond)
			}
		})
	}
	if results < 20 {
		t.Errorf("%d results in all: the property was hardly tried", results)
	}
}
