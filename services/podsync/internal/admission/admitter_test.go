package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

const (
	api  = podsyncv1.PodSource_POD_SOURCE_API
	file = podsyncv1.PodSource_POD_SOURCE_FILE
)

// machine is what an Admitter has around it.
type machine struct {
	*Admitter
	mu      sync.Mutex
	node    *v1.Node
	newer   *v1.Node      // what the apiserver would answer
	known   chan struct{} // closed when the Node is known
	running map[types.UID]bool
	away    bool // the runtime
	evicted []string
	grace   time.Duration
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{node: testNode(), known: make(chan struct{}), running: map[types.UID]bool{}, grace: 10 * time.Second}
	m.Admitter = NewAdmitter(AdmitterOptions{
		Handlers: []Handler{NodeFit{}}, Resizes: []Handler{NodeFit{}}, Nodes: m, Evictor: m, Running: m.runs,
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	close(m.known)
	return m
}

func (m *machine) Node() *v1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

func (m *machine) Wait(ctx context.Context) error {
	select {
	case <-m.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *machine) Refresh(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newer == nil {
		return errors.New("the apiserver is away")
	}
	m.node = m.newer
	return nil
}

func (m *machine) runs(context.Context) (map[types.UID]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, errors.New("the runtime is away")
	}
	return m.running, nil
}

func (m *machine) Evict(ctx context.Context, victim *v1.Pod) error {
	m.mu.Lock()
	m.evicted = append(m.evicted, victim.Name)
	m.mu.Unlock()
	select {
	case <-time.After(m.grace):
	case <-ctx.Done():
		return ctx.Err()
	}
	m.Ended(victim.UID)
	return nil
}

// born gives a pod an identity and an age in seconds.
func born(p *v1.Pod, second int) *v1.Pod {
	p.UID = types.UID("uid-" + p.Name)
	p.CreationTimestamp = metav1.Unix(int64(1000+second), 0)
	return p
}

// answers collects what Admit says, each pod asking in a goroutine of its own.
type answers struct {
	mu  sync.Mutex
	got map[string]string
}

func (m *machine) ask(ctx context.Context, a *answers, p *v1.Pod, source podsyncv1.PodSource) {
	go func() {
		v, err := m.Admit(ctx, p, source, false)
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case err != nil:
			a.got[p.Name] = "error"
		case v.Admitted():
			a.got[p.Name] = "admitted"
		default:
			a.got[p.Name] = v.Reason
		}
	}()
}

func (a *answers) want(t *testing.T, want map[string]string) {
	t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := cmp.Diff(want, a.got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestOlderPodsComeFirst(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			m, a := newMachine(t), &answers{got: map[string]string{}}
			var pods []*v1.Pod
			for i := range 6 {
				pods = append(pods, born(requesting(fmt.Sprint("p", i), "cpu", "1"), i))
			}
			random := rand.New(rand.NewPCG(seed, 0))
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			for _, p := range pods {
				m.Add(p, api)
			}
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			for _, p := range pods {
				m.ask(t.Context(), a, p, api)
			}
			a.want(t, map[string]string{}) // the source has more to deliver
			m.Heard(api)
			a.want(t, map[string]string{
				"p0": "admitted",
				"p1": "admitted",
				"p2": "OutOfcpu",
				"p3": "OutOfcpu",
				"p4": "OutOfcpu",
				"p5": "OutOfcpu",
			})
			if n := testutil.ToFloat64(m.metrics.rejections.WithLabelValues("OutOfcpu")); n != 4 {
				t.Errorf("counted %v rejections", n)
			}
		})
	}
}

func TestWhatRunsIsNeverRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		older, runs := born(requesting("older", "cpu", "1"), 0), born(requesting("runs", "cpu", "2"), 1)
		runs.Spec.NodeSelector = map[string]string{"zone": "gone"}
		m.running[runs.UID] = true
		for _, p := range []*v1.Pod{older, runs} {
			m.Add(p, api)
		}
		m.Heard(api)
		m.ask(t.Context(), a, older, api)
		a.want(t, map[string]string{"older": "OutOfcpu"})
		m.ask(t.Context(), a, runs, api)
		a.want(t, map[string]string{"older": "OutOfcpu", "runs": "admitted"})
	})
}

func TestStaticPodsWaitForNoApiserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.known = make(chan struct{})
		static, remote := born(requesting("static", "cpu", "2"), 1), born(requesting("remote", "cpu", "1"), 0)
		m.ask(t.Context(), a, static, file)
		m.Heard(file)
		m.Heard(api)
		m.ask(t.Context(), a, remote, api)
		a.want(t, map[string]string{"static": "admitted"})
		close(m.known)
		a.want(t, map[string]string{"static": "admitted", "remote": "OutOfcpu"})
	})
}

func TestAnEndedPodFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		first, second, third := born(onPort("first", "", 80, ""), 0), born(onPort("second", "", 80, ""), 1), born(
			onPort("third", "", 80, ""), 2,
		)
		m.ask(t.Context(), a, first, api)
		synctest.Wait()
		m.ask(t.Context(), a, second, api)
		a.want(t, map[string]string{"first": "admitted", "second": "NodePorts"})
		m.Ended(first.UID)
		m.ask(t.Context(), a, second, api) // its result stands
		m.ask(t.Context(), a, third, api)
		a.want(t, map[string]string{"first": "admitted", "second": "NodePorts", "third": "admitted"})
		m.Forget(second.UID)
		if len(m.pods) != 2 {
			t.Errorf("%d pods are remembered", len(m.pods))
		}
	})
}

func TestPodsThatAreOverTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		over, leaving := born(requesting("over", "cpu", "2"), 0), born(requesting("leaving", "cpu", "2"), 1)
		over.Status.Phase = v1.PodSucceeded
		leaving.DeletionTimestamp = new(metav1.Now())
		m.Add(over, api)
		m.Add(leaving, api)
		m.Heard(api)
		m.ask(t.Context(), a, born(requesting("new", "cpu", "2"), 2), api)
		a.want(t, map[string]string{"new": "admitted"})
	})
}

func TestTheNewestNodeIsAskedForBeforeItsLabelsReject(t *testing.T) {
	for _, test := range []struct {
		name  string
		newer *v1.Node
		want  string
	}{
		{"labelled", changedNode(func(n *v1.Node) { n.Labels["zone"] = "b" }), "admitted"},
		{"not labelled", testNode(), "NodeAffinity"},
		{"apiserver away", nil, "NodeAffinity"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, a := newMachine(t), &answers{got: map[string]string{}}
			m.Heard(api)
			m.newer = test.newer
			p := born(requesting("p"), 0)
			p.Spec.NodeSelector = map[string]string{"zone": "b"}
			m.ask(t.Context(), a, p, api)
			a.want(t, map[string]string{"p": test.want})
		})
	}
}

func changedNode(change func(*v1.Node)) *v1.Node {
	n := testNode()
	change(n)
	return n
}

func TestPreemptionMakesRoomAndOthersWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		for i, p := range []*v1.Pod{requesting("small", "cpu", "500m"), requesting("large", "cpu", "1500m")} {
			m.ask(t.Context(), a, born(p, i), api)
			synctest.Wait()
		}
		m.ask(t.Context(), a, born(important(requesting("critical", "cpu", "1")), 2), api)
		synctest.Wait()
		// It does not fit beside those that go, and will fit beside those that stay.
		m.ask(t.Context(), a, born(requesting("late", "cpu", "500m"), 3), api)
		m.ask(t.Context(), a, born(requesting("free"), 4), api)
		admitted := map[string]string{"small": "admitted", "large": "admitted"}
		a.want(t, admitted)
		if !slices.Equal(m.evicted, []string{"large"}) {
			t.Fatalf("evicted %v", m.evicted)
		}
		time.Sleep(m.grace)
		admitted["critical"], admitted["late"] = "admitted", "admitted"
		admitted["free"] = "OutOfpods" // small, critical and late are three
		a.want(t, admitted)
		if n := testutil.ToFloat64(m.metrics.preemptions.WithLabelValues("cpu")); n != 1 {
			t.Errorf("counted %v preemptions", n)
		}
	})
}

func TestAPreemptorThatIsDeletedHoldsUpNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		m.ask(t.Context(), a, born(requesting("victim", "cpu", "2"), 0), api)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		critical := born(important(requesting("critical", "cpu", "1")), 1)
		m.ask(ctx, a, critical, api)
		synctest.Wait()
		late := born(requesting("late", "cpu", "2"), 2)
		m.ask(t.Context(), a, late, api)
		synctest.Wait()
		cancel()
		m.Ended(critical.UID)
		a.want(t, map[string]string{"victim": "admitted", "critical": "error", "late": "OutOfcpu"})
	})
}

func TestAResultThatIsNotFetchedHoldsUpNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		m.ask(t.Context(), a, born(requesting("victim", "cpu", "2"), 0), api)
		synctest.Wait()
		critical := born(important(requesting("critical", "cpu", "1")), 1)
		m.Add(critical, api) // its worker never asks
		m.ask(t.Context(), a, born(requesting("late", "cpu", "2"), 2), api)
		a.want(t, map[string]string{"victim": "admitted"})
		m.Ended(critical.UID)
		a.want(t, map[string]string{"victim": "admitted", "late": "OutOfcpu"})
	})
}

func TestARuntimeThatIsAwayRejectsNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		m.away = true
		p := born(requesting("p", "cpu", "5"), 0)
		m.running[p.UID] = true
		m.ask(t.Context(), a, p, api)
		a.want(t, map[string]string{"p": "error"})
		m.away = false
		m.ask(t.Context(), a, p, api)
		a.want(t, map[string]string{"p": "admitted"})
	})
}

// What would be rejected is said without an effect on the pods that are there.
func TestJudgingAPodKeepsNothingOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		m.ask(t.Context(), a, born(requesting("there", "cpu", "1500m"), 0), api)
		synctest.Wait()
		for range 3 {
			if v := m.Judge(t.Context(), requesting("large", "cpu", "1")); v.Reason != "OutOfcpu" {
				t.Errorf("a pod that does not fit: %+v", v)
			}
			if v := m.Judge(t.Context(), requesting("small", "cpu", "500m")); !v.Admitted() {
				t.Errorf("a pod that fits: %+v", v)
			}
			if v := m.Judge(t.Context(), requesting("there", "cpu", "2")); !v.Admitted() {
				t.Errorf("a new version of a pod: %+v", v)
			}
			if v := m.Judge(t.Context(), important(requesting("critical", "cpu", "1"))); !v.Admitted() {
				t.Errorf("a critical pod: %+v", v)
			}
		}
		m.ask(t.Context(), a, born(requesting("next", "cpu", "500m"), 1), api)
		a.want(t, map[string]string{"there": "admitted", "next": "admitted"})
		if len(m.evicted) > 0 {
			t.Errorf("evicted %v", m.evicted)
		}
	})
}

// TestAVersionThatCameAfterTheAdmission: another pod's question has had the pod admitted. What it asks for since was
// not judged, and does not count.
func TestAVersionThatCameAfterTheAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.Heard(file)
		small, other := born(requesting("a", "cpu", "500m"), 0), born(requesting("b", "cpu", "1500m"), 1)
		m.Add(small, file)
		if v, err := m.Admit(t.Context(), other, file, false); err != nil || !v.Admitted() || v.Judged != other {
			t.Fatalf("%+v, %v", v, err)
		}
		if v, err := m.Admit(t.Context(), sized(small, "1500m"), file, false); err != nil || v.Judged != small {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
