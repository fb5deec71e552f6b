package manager

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	worker "github.com/microlet/microlet/services/podsync/internal/pods"
)

// node has pods that end when they were asked to and their time is over.
type node struct {
	synced chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*testPod
	log  []string
	// began is when the test did.
	began       time.Time
	releases    int
	nodeIsReady bool
}

type testPod struct {
	worker.Standing
	takes     time.Duration // at most the grace period
	delivery  time.Duration // from the end to the acknowledgement; negative: never
	asked     time.Time
	delivered bool
}

func newNode(pods ...*testPod) *node {
	n := &node{synced: make(chan struct{}), pods: map[types.UID]*testPod{}, began: time.Now()}
	for _, p := range pods {
		n.pods[p.Pod.UID] = p
	}
	close(n.synced)
	return n
}

func podOf(name string, priority int32, grace int64, takes time.Duration) *testPod {
	return &testPod{Standing: worker.Standing{
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:       v1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace},
			Status:     v1.PodStatus{Phase: v1.PodRunning},
		},
		Admitted: true, Syncing: true,
	}, takes: takes}
}

func (n *node) Synced() <-chan struct{} { return n.synced }

func (n *node) Standings() []worker.Standing {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []worker.Standing
	for _, p := range n.pods {
		all = append(all, p.Standing)
	}
	return all
}

func (n *node) note(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf("%v ", time.Since(n.began).Round(time.Second))+fmt.Sprintf(format, args...))
}

func (n *node) Evict(ctx context.Context, uid types.UID, o status.Override, grace *int64) error {
	n.mu.Lock()
	p := n.pods[uid]
	n.note("%s asked, grace %d", uid, *grace)
	p.asked, p.Syncing = time.Now(), false
	n.mu.Unlock()
	if o.Phase != v1.PodFailed || o.Reason != "Terminated" ||
		o.Message != "Pod was terminated in response to imminent node shutdown." ||
		o.Condition.Type != v1.DisruptionTarget || o.Condition.Reason != v1.PodReasonTerminationByKubelet {
		panic(fmt.Sprintf("%+v", o))
	}
	select {
	case <-time.After(min(p.takes, time.Duration(*grace)*time.Second)):
	case <-ctx.Done():
		return ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note("%s ended", uid)
	p.Released = true
	if p.delivery >= 0 {
		time.AfterFunc(p.delivery, func() { n.mu.Lock(); p.delivered = true; n.mu.Unlock() })
	}
	return nil
}

func (n *node) delivered(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid].delivered
}

func (n *node) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note("released")
	n.releases++
}

func (n *node) nodeReported() bool { n.mu.Lock(); defer n.mu.Unlock(); return !n.nodeIsReady }

func (n *node) lines() []string { n.mu.Lock(); defer n.mu.Unlock(); return slices.Clone(n.log) }

var threePhases = []Phase{
	{Priority: 0, Period: 10 * time.Second}, {Priority: 1000, Period: 20 * time.Second},
	{Priority: 2_000_000_000, Period: 5 * time.Second},
}

// manage runs a manager of the first boot until stop is called.
func manage(t *testing.T, n *node, path string) (m *Manager, events *record.FakeRecorder, stop func()) {
	t.Helper()
	return manageIn(t, "first", n, path)
}

func manageIn(t *testing.T, boot string, n *node, path string) (m *Manager, events *record.FakeRecorder, stop func()) {
	t.Helper()
	events = record.NewFakeRecorder(100)
	m = New(Options{
		Phases: threePhases, Pods: n, Delivered: n.delivered, NodeReported: n.nodeReported, Release: n.release,
		State: path, BootID: boot, Node: &v1.ObjectReference{Kind: "Node", Name: "n"}, Events: events,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return m, events, func() { cancel(); <-ended }
}

func statePath(t *testing.T) string { return filepath.Join(t.TempDir(), StateFile) }

func expect(t *testing.T, n *node, want ...string) {
	t.Helper()
	if got := n.lines(); !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestPhasesEndPodsByPriority(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNode(podOf("low", 5, 30, 3*time.Second), podOf("high", 1000, 2, time.Minute),
			podOf("critical", 2_000_001_000, 30, time.Second))
		m, events, stop := manage(t, n, path)
		defer stop()
		began := time.Now()
		m.Changed(false)
		m.Changed(true)
		m.Changed(true)
		if r := m.Admit(t.Context(), nil); r != (admission.Result{
			Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down.",
		}) {
			t.Errorf("a pod that comes now: %+v", r)
		}
		time.Sleep(time.Minute)
		expect(t, n, "0s low asked, grace 10", "3s low ended", "3s high asked, grace 2", "5s high ended",
			"5s critical asked, grace 5", "6s critical ended", "6s released")
		if got := testutil.ToFloat64(m.start); got != float64(began.Unix()) {
			t.Errorf("start is %v, want %v", got, began.Unix())
		}
		if got := testutil.ToFloat64(m.end); got != float64(began.Add(6*time.Second).Unix()) {
			t.Errorf("end is %v, want 6 s after %v", got, began.Unix())
		}
		if len(events.Events) != 1 || <-events.Events != "Normal Shutdown Shutdown manager detected shutdown event" {
			t.Errorf("%d more events", len(events.Events))
		}
	})
}

func TestAPhaseIsOverWithItsPeriod(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		lost := podOf("lost", 0, 30, time.Second) // its status never arrives
		lost.delivery = -1
		late := podOf("late", 1000, 30, time.Second) // its status arrives a little later
		late.delivery = 4 * time.Second
		n := newNode(lost, late)
		m, _, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		time.Sleep(time.Minute)
		expect(t, n, "0s lost asked, grace 10", "1s lost ended", "10s late asked, grace 20", "11s late ended",
			"20s released")
	})
}

func TestTheLastPhaseWaitsForAcknowledgements(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		p := podOf("critical", 2_000_000_000, 30, time.Second)
		p.delivery = 3 * time.Second
		n := newNode(p)
		m, _, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		time.Sleep(time.Minute)
		expect(t, n, "0s critical asked, grace 5", "1s critical ended", "4s released")
	})
}

func TestWhoWaitsForTheNode(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.nodeIsReady = true
		m, _, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		time.Sleep(2 * time.Second)
		expect(t, n)
		n.mu.Lock()
		n.nodeIsReady = false
		n.mu.Unlock()
		time.Sleep(time.Second)
		expect(t, n, "2s released")
	})
}

func TestACancelledShutdownEndsNoMorePods(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNode(podOf("low", 0, 30, 3*time.Second), podOf("high", 1000, 30, time.Second))
		m, events, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		time.Sleep(2 * time.Second)
		m.Changed(false)
		time.Sleep(10 * time.Second)
		expect(t, n, "0s low asked, grace 10")
		if r := m.Admit(t.Context(), nil); !r.Admitted() {
			t.Errorf("after the cancellation: %+v", r)
		}
		<-events.Events
		if e := <-events.Events; e != "Normal Shutdown Shutdown manager detected shutdown cancellation" {
			t.Errorf("event %q", e)
		}
		m.Changed(true)
		time.Sleep(time.Minute)
		if got := n.lines(); got[len(got)-1] != "16s released" {
			t.Errorf("the next shutdown: %q", got)
		}
	})
}

// A cancellation and the next shutdown may come before the first one's phases have ended.
func TestAShutdownThatBeginsAgainAtOnce(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNode(podOf("low", 0, 30, 3*time.Second))
		m, _, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		synctest.Wait()
		m.Changed(false)
		m.Changed(true)
		time.Sleep(time.Minute)
		expect(t, n, "0s low asked, grace 10", "0s low asked, grace 10", "3s low ended", "3s released")
	})
}

func TestAKilledPodsyncContinues(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNode(podOf("low", 0, 30, time.Second), podOf("high", 1000, 30, 12*time.Second),
			podOf("critical", 2_000_000_000, 30, time.Second))
		m, _, kill := manage(t, n, path)
		m.Changed(true)
		time.Sleep(6 * time.Second) // 5 s of the second phase
		kill()
		if n.releases != 0 {
			t.Fatal("the end of podsync released the machine")
		}
		time.Sleep(time.Second)

		n.mu.Lock()
		n.synced, n.log = make(chan struct{}), nil
		high := n.pods["high"]
		high.Admitted, high.Syncing = false, true
		n.mu.Unlock()
		m, events, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		if len(events.Events) != 0 {
			t.Errorf("the shutdown is reported again: %q", <-events.Events)
		}
		for name, ends := range map[types.UID]bool{"low": true, "high": true, "critical": false} {
			if got := m.Ends(n.pods[name].Pod); (got != nil) != ends {
				t.Errorf("%s ends at once: %t, want %t", name, got != nil, ends)
			}
		}
		if m.Ends(&v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}) != nil {
			t.Error("a pod that never ran is not rejected but ended")
		}
		time.Sleep(time.Second)
		n.mu.Lock()
		n.note("known")
		high.Admitted = true
		close(n.synced)
		n.mu.Unlock()
		time.Sleep(time.Minute)
		// 7 s of its 20 were over when podsync was back, and another one passed until the pods were known.
		expect(t, n, "8s known", "8s high asked, grace 13", "20s high ended", "20s critical asked, grace 5",
			"21s critical ended", "21s released")
	})
}

// cutOff begins a shutdown with a pod that takes too long, and kills podsync 3 s later. The state has no end.
func cutOff(t *testing.T, path string) {
	t.Helper()
	n := newNode(podOf("stubborn", 2_000_000_000, 60, time.Minute))
	m, _, kill := manage(t, n, path)
	m.Changed(true)
	time.Sleep(3 * time.Second)
	kill()
}

// threePods are one of each phase.
func threePods() *node {
	return newNode(podOf("low", 0, 10, 5*time.Second), podOf("high", 1000, 20, 5*time.Second),
		podOf("critical", 2_000_000_000, 5, time.Second))
}

// expectAllPhases waits until the pods of threePods have ended, each in its own phase.
func expectAllPhases(t *testing.T, n *node) {
	t.Helper()
	time.Sleep(time.Minute)
	expect(t, n, "0s low asked, grace 10", "5s low ended", "5s high asked, grace 20", "10s high ended",
		"10s critical asked, grace 5", "11s critical ended", "11s released")
}

// TestTheNextBootContinuesNothing: logind has waited no longer. The machine is up again at once, and shuts down again.
func TestTheNextBootContinuesNothing(t *testing.T) {
	for name, boot := range map[string]string{"another": "second", "unknown": ""} {
		t.Run(name, func(t *testing.T) {
			path := statePath(t)
			synctest.Test(t, func(t *testing.T) {
				cutOff(t, path)
				cut, err := load(path)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				n := threePods()
				m, events, stop := manageIn(t, boot, n, path)
				defer stop()
				m.Changed(false)
				if s, err := load(path); err != nil || s != cut {
					t.Errorf("the state of what was cut off is %+v, %v, want %+v", s, err, cut)
				}
				m.Changed(true)
				expectAllPhases(t, n)
				if len(events.Events) != 1 || <-events.Events != "Normal Shutdown Shutdown manager detected shutdown event" {
					t.Errorf("%d more events", len(events.Events))
				}
			})
		})
	}
}

// TestAStateWithoutABoot is a kubelet's, or an earlier version's: an upgrade in the middle begins the shutdown again.
func TestAStateWithoutABoot(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().Add(-3 * time.Second).Format(time.RFC3339)
		data := `{"startTime":"` + began + `","endTime":"0001-01-01T00:00:00Z","microletPhasePriority":2000000000,` +
			`"microletPhaseStartTime":"` + began + `"}`
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		n := threePods()
		m, _, stop := manage(t, n, path)
		defer stop()
		if got := testutil.ToFloat64(m.start); got != float64(time.Now().Unix()-3) {
			t.Errorf("start is %v", got)
		}
		m.Changed(true)
		expectAllPhases(t, n)
	})
}

// TestAShutdownThatIsCancelledWhilePodsyncRestarts: the next one is another one.
func TestAShutdownThatIsCancelledWhilePodsyncRestarts(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		cutOff(t, path)
		n := threePods()
		m, events, stop := manage(t, n, path)
		defer stop()
		m.Changed(false)
		m.Changed(false)
		if s, err := load(path); err != nil || !s.EndTime.Equal(time.Now()) {
			t.Errorf("the state is %+v, %v", s, err)
		}
		if len(events.Events) != 1 || <-events.Events != "Normal Shutdown Shutdown manager detected shutdown cancellation" {
			t.Errorf("%d more events", len(events.Events))
		}
		m.Changed(true)
		expectAllPhases(t, n)
	})
}

func TestARejectedPodIsNotWaitedFor(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		p := podOf("rejected", 0, 30, time.Second)
		p.Admitted, p.Rejection = false, &admission.Result{Reason: "NodeShutdown"}
		n := newNode(p)
		m, _, stop := manage(t, n, path)
		defer stop()
		m.Changed(true)
		time.Sleep(time.Second)
		expect(t, n, "0s released")
	})
}

func TestPhaseOf(t *testing.T) {
	byPriority := []Phase{{Priority: 10}, {Priority: 20}, {Priority: 20}, {Priority: 30}}
	for priority, want := range map[int32]int{-5: 0, 0: 0, 10: 0, 15: 0, 20: 1, 25: 2, 30: 3, 2_000_000_000: 3} {
		if got := phaseOf(byPriority, podOf("p", priority, 0, 0).Pod); got != want {
			t.Errorf("a pod of priority %d ends in phase %d, want %d", priority, got, want)
		}
	}
	if got := phaseOf(byPriority, &v1.Pod{}); got != 0 {
		t.Errorf("a pod without a priority ends in phase %d, want 0", got)
	}
}

func TestPhasesOfTheTwoPeriods(t *testing.T) {
	got := phases(nil, 30*time.Second, 10*time.Second)
	want := []Phase{{0, 20 * time.Second}, {2_000_000_000, 10 * time.Second}}
	if !slices.Equal(got, want) || Total(got) != 30*time.Second {
		t.Errorf("phases are %v, want %v", got, want)
	}
}
