package results

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

type bucket map[string]*proberv1.ProbeResult

func (b bucket) Get(key string) (*proberv1.ProbeResult, bool) { r, ok := b[key]; return r, ok }
func (b bucket) All() map[string]*proberv1.ProbeResult        { return b }

const (
	success = proberv1.Outcome_OUTCOME_SUCCESS
	failure = proberv1.Outcome_OUTCOME_FAILURE
)

func result(o proberv1.Outcome, id, replica string, generation uint64) *proberv1.ProbeResult {
	return &proberv1.ProbeResult{Result: o, ContainerId: id, Replica: replica, Generation: generation}
}

// probed is a pod. Its container c has every probe, and its container d has none.
func probed(uid types.UID) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name: "c", ReadinessProbe: &v1.Probe{}, LivenessProbe: &v1.Probe{}, StartupProbe: &v1.Probe{},
	}, {Name: "d"}}}}
	p.UID = uid
	return p
}

func TestOnlyTheNewestAssignmentCounts(t *testing.T) {
	b := bucket{}
	var assigned *podsyncv1.Assignment
	var woken []types.UID
	s := New(Options{
		Results: b, Metrics: prometheus.NewRegistry(),
		Assigned: func(string) (*podsyncv1.Assignment, bool) { return assigned, assigned != nil },
		Wake:     func(uid types.UID) { woken = append(woken, uid) },
	})
	s.Set(probed("p"))
	put := func(key string, r *proberv1.ProbeResult) {
		b[key] = r
		s.Changed(key)
	}
	expect := func(what string, wakes int, want decide.Results) {
		t.Helper()
		if diff := cmp.Diff(want, s.Of("p")); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		if len(woken) != wakes || slices.ContainsFunc(woken, func(uid types.UID) bool { return uid != "p" }) {
			t.Errorf("%s: woken %v, want %d times", what, woken, wakes)
		}
		woken = nil
	}
	v := func(probe, id string, r decide.Result) decide.Results {
		all := decide.Results{
			Readiness: map[string]decide.Result{}, Liveness: map[string]decide.Result{}, Startup: map[string]decide.Result{},
		}
		if id != "" {
			map[string]map[string]decide.Result{"readiness": all.Readiness, "liveness": all.Liveness,
				"startup": all.Startup}[probe][id] = r
		}
		return all
	}

	put("p.c.liveness", result(failure, "one", "0", 5))
	expect("no replica is assigned", 0, v("", "", 0))
	assigned = &podsyncv1.Assignment{Replica: "0", Generation: 5}
	s.Assigned("p")
	expect("assigned afterwards", 1, v("liveness", "one", decide.Failure))
	put("p.c.liveness", result(failure, "one", "0", 5))
	expect("the same again", 0, v("liveness", "one", decide.Failure))

	assigned = &podsyncv1.Assignment{Replica: "1", Generation: 6}
	s.Assigned("p")
	expect("what counted holds", 0, v("liveness", "one", decide.Failure))
	put("p.c.liveness", result(success, "one", "0", 5))
	expect("an older assignment", 0, v("liveness", "one", decide.Failure))
	put("p.c.liveness", result(success, "one", "0", 6))
	expect("another replica, under this generation", 0, v("liveness", "one", decide.Failure))
	put("p.c.liveness", result(success, "one", "1", 6))
	expect("the newest assignment", 1, v("liveness", "one", decide.Success))
	delete(b, "p.c.liveness")
	s.Changed("p.c.liveness")
	expect("what is missing changes nothing", 0, v("liveness", "one", decide.Success))

	put("p.c.liveness", result(proberv1.Outcome_OUTCOME_UNSPECIFIED, "two", "1", 6))
	expect("a new container has no result", 0, v("", "", 0))
	put("p.c.liveness", result(failure, "two", "1", 6))
	expect("its own", 1, v("liveness", "two", decide.Failure))
	s.Set(probed("p"))
	expect("a newer version of the pod", 0, v("liveness", "two", decide.Failure))
	s.Forget("p")
	expect("a pod that is gone", 0, v("", "", 0))
	put("p.c.liveness", result(success, "two", "1", 6))
	expect("a result that comes after the pod", 0, v("", "", 0))
	for _, probe := range []string{"readiness", "startup"} {
		s.Set(probed("p"))
		put("p.c."+probe, result(success, "two", "1", 6))
		expect(probe, 1, v(probe, "two", decide.Success))
		s.Forget("p")
	}
}

// However results and assignments come in: what counts was said under an assignment that was the
// newest when it was taken, by the replica that had it, and of the container id that it is for.
func TestWhatCountsWasAlwaysAssigned(t *testing.T) {
	accepted := 0
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		b := bucket{}
		var assigned *podsyncv1.Assignment
		s := New(Options{
			Results: b, Metrics: prometheus.NewRegistry(), Wake: func(types.UID) {},
			Assigned: func(string) (*podsyncv1.Assignment, bool) { return assigned, assigned != nil },
		})
		s.Set(probed("p"))
		failed := map[string]bool{} // ids of which a result that counts said so
		generation := uint64(0)
		for range 60 {
			if random.IntN(4) == 0 {
				generation++
				assigned = &podsyncv1.Assignment{Replica: fmt.Sprint(random.IntN(3)), Generation: generation}
				if r := b["p.c.liveness"]; r != nil && r.GetReplica() == assigned.GetReplica() &&
					r.GetGeneration() == generation && r.GetResult() == failure {
					failed[r.GetContainerId()] = true
				}
				s.Assigned("p")
			} else {
				r := result([]proberv1.Outcome{success, failure}[random.IntN(2)], fmt.Sprint("id-", random.IntN(3)),
					fmt.Sprint(random.IntN(3)), generation+uint64(random.IntN(2))-uint64(random.IntN(2)))
				b["p.c.liveness"] = r
				if assigned != nil && r.GetReplica() == assigned.GetReplica() &&
					r.GetGeneration() == assigned.GetGeneration() && r.GetResult() == failure {
					failed[r.GetContainerId()] = true
				}
				s.Changed("p.c.liveness")
			}
			for id, result := range s.Of("p").Liveness {
				if accepted++; result == decide.Failure && !failed[id] {
					t.Fatalf("seed %d: %s is to be restarted, and no assigned replica said so", seed, id)
				}
			}
		}
	}
	if accepted < 1000 {
		t.Errorf("%d results counted: the property was hardly tried", accepted)
	}
}

// A result stays when its key goes, so the number of results must not be the prober's choice.
func TestOnlyDeclaredProbesHaveResults(t *testing.T) {
	b := bucket{}
	woken := 0
	s := New(Options{
		Results: b, Metrics: prometheus.NewRegistry(), Wake: func(types.UID) { woken++ },
		Assigned: func(string) (*podsyncv1.Assignment, bool) {
			return &podsyncv1.Assignment{Replica: "0", Generation: 5}, true
		},
	})
	s.Set(probed("p"))
	unprobed := probed("without probes")
	unprobed.Spec.Containers = unprobed.Spec.Containers[1:]
	s.Set(unprobed)
	put := func(key, id string) {
		b[key] = result(failure, id, "0", 5)
		s.Changed(key)
		delete(b, key)
		s.Changed(key)
	}
	for i := range 100 {
		put(fmt.Sprintf("p.c%d.liveness", i), "one")
		put(fmt.Sprintf("p.c.kind%d", i), "one")
		put(fmt.Sprintf("p%d.c.liveness", i), "one")
	}
	put("p.d.liveness", "one")
	put("p.c.liveness", strings.Repeat("x", maxID+1))
	if diff := cmp.Diff(s.Of("none"), s.Of("p")); diff != "" || woken != 0 {
		t.Errorf("woken %d times; the pod has results that no probe of it has given: %s", woken, diff)
	}
	put("p.c.liveness", strings.Repeat("x", maxID))
	if got := len(s.Of("p").Liveness); got != 1 || woken != 1 {
		t.Errorf("woken %d times; the pod has %d results, want its own", woken, got)
	}
	if len(s.pods) != 1 || len(s.pods["p"]) != 3 {
		t.Errorf("the store holds %d pods and %d results of the one that has 3 probes", len(s.pods), len(s.pods["p"]))
	}
}
