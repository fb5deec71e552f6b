package results

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// View is PROBE_RESULTS; see bus.View.
type View interface {
	Get(key string) (*proberv1.ProbeResult, bool)
	All() map[string]*proberv1.ProbeResult
}

// Options of a Store.
type Options struct {
	Results View
	// Assigned returns a pod's assignment.
	Assigned func(uid string) (*podsyncv1.Assignment, bool)
	// Wake wakes a pod's worker; it must not block.
	Wake    func(uid types.UID)
	Metrics prometheus.Registerer
}

// Store keeps the results that count. Its methods may be called from any goroutine.
type Store struct {
	o       Options
	dropped prometheus.Counter

	mu   sync.Mutex
	pods map[string]map[probe]latest // by pod UID; each probe of the pod's spec, and no other
}

// maxID bounds the ID of a container, in bytes. The runtimes' have 64.
const maxID = 256

// probe is one of a pod's.
type probe struct{ container, kind string }

type latest struct {
	id         string
	result     decide.Result
	generation uint64
}

// New returns an empty store.
func New(o Options) *Store {
	s := &Store{o: o, pods: map[string]map[probe]latest{}, dropped: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "microlet_podsync_probe_results_dropped_total",
		Help: "Probe results that were dropped because another replica had been assigned the pod.",
	})}
	o.Metrics.MustRegister(s.dropped)
	return s
}

// Set adds or updates a pod. Results of probes that no pod has are not taken: the prober can put any number of them.
func (s *Store) Set(p *v1.Pod) {
	declared := map[probe]latest{}
	for c := range podutil.Containers(&p.Spec) {
		for kind, is := range map[string]*v1.Probe{
			subject.ProbeReadiness: c.ReadinessProbe, subject.ProbeLiveness: c.LivenessProbe,
			subject.ProbeStartup: c.StartupProbe,
		} {
			if is != nil {
				declared[probe{c.Name, kind}] = latest{}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(declared) == 0 {
		delete(s.pods, string(p.UID))
		return
	}
	for of := range declared {
		declared[of] = s.pods[string(p.UID)][of]
	}
	s.pods[string(p.UID)] = declared
}

// Changed takes the value of a key of PROBE_RESULTS. One that is gone changes nothing.
func (s *Store) Changed(key string) {
	if r, ok := s.o.Results.Get(key); ok {
		s.take(key, r)
	}
}

// Assigned looks again at the results of a pod when its assignment has changed.
func (s *Store) Assigned(uid types.UID) {
	for key, r := range s.o.Results.All() {
		if of, _, _, ok := subject.ParseProbeResultKey(key); ok && of == string(uid) {
			s.take(key, r)
		}
	}
}

// take accepts a result from the replica that the pod is assigned to.
func (s *Store) take(key string, r *proberv1.ProbeResult) {
	uid, container, kind, ok := subject.ParseProbeResultKey(key)
	if !ok || len(r.GetContainerId()) > maxID {
		return
	}
	assignment, assigned := s.o.Assigned(uid)
	if !assigned {
		return // looked at again when it is
	}
	if r.GetGeneration() != assignment.GetGeneration() || r.GetReplica() != assignment.GetReplica() {
		s.dropped.Inc()
		return
	}
	v := latest{id: r.GetContainerId(), result: results[r.GetResult()], generation: r.GetGeneration()}
	old, declared := s.replace(uid, probe{container, kind}, v)
	if !declared {
		return
	}
	if old.id != v.id && v.result != decide.Unknown || old.id == v.id && old.result != v.result {
		s.o.Wake(types.UID(uid))
	}
}

// replace keeps the result of a probe that the pod declares, and returns the one before.
func (s *Store) replace(uid string, of probe, v latest) (old latest, declared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, declared = s.pods[uid][of]; declared {
		s.pods[uid][of] = v
	}
	return old, declared
}

var results = map[proberv1.Outcome]decide.Result{
	proberv1.Outcome_OUTCOME_SUCCESS: decide.Success,
	proberv1.Outcome_OUTCOME_FAILURE: decide.Failure,
}

// Of returns a pod's results.
func (s *Store) Of(uid types.UID) decide.Results {
	v := decide.Results{
		Readiness: map[string]decide.Result{}, Liveness: map[string]decide.Result{}, Startup: map[string]decide.Result{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, r := range s.pods[string(uid)] {
		if r.result == decide.Unknown {
			continue
		}
		switch of.kind {
		case subject.ProbeReadiness:
			v.Readiness[r.id] = r.result
		case subject.ProbeLiveness:
			v.Liveness[r.id] = r.result
		case subject.ProbeStartup:
			v.Startup[r.id] = r.result
		}
	}
	return v
}

// Forget drops a pod that is gone.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, string(uid))
}
