package manager

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// managed runs f against a running manager, in virtual time.
func managed(t *testing.T, a *apiserver, workers int, f func(t *testing.T, m *Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Options{Client: a, Workers: workers, Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		f(t, m)
		cancel()
		wg.Wait()
		if a.overlap {
			t.Error("two calls for one pod were under way at once")
		}
	})
}

func runs(p *v1.Pod) v1.PodStatus {
	in := inputs()
	in.Now = time.Now()
	return status.Generate(p, ready(ctr("1", "a", running, 0)), in)
}

func ended(p *v1.Pod) v1.PodStatus {
	in := inputs()
	in.Now, in.Terminal = time.Now(), true
	return status.Generate(p, ready(ctr("1", "a", dead, 0)), in)
}

func settle(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

func TestPatchOnlyWhatChanged(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		a.change("web",
			func(p *v1.Pod) { p.Status.Conditions = []v1.PodCondition{{Type: "lb", Status: v1.ConditionTrue}} })
		p := a.get("web")
		m.Set(p, runs(p))
		settle(0)
		got := a.get("web")
		if got.Status.Phase != v1.PodRunning || podutil.Condition(got.Status.Conditions, "lb") == nil ||
			!m.Delivered(p.UID) || m.Pending() != 0 {
			t.Fatalf("status %+v", got.Status)
		}
		m.UpdateFromAPI(got)
		settle(time.Hour)
		in := inputs()
		in.Now = time.Now()
		last, _ := m.Last(p.UID)
		in.Old = &last
		m.Set(got, status.Generate(got, ready(ctr("1", "a", running, 0)), in))
		settle(time.Hour)
		if n := a.count("patch web"); n != 1 {
			t.Errorf("%d patches for one status", n)
		}
	})
}

func TestRestartedManagerWritesNothing(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(time.Second)
	})
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(time.Minute)
		if n := a.count("patch web"); n != 1 || !m.Delivered(p.UID) {
			t.Errorf("%d patches, delivered %v", n, m.Delivered(p.UID))
		}
	})
}

func TestNewestWinsInOrder(t *testing.T) {
	a := newServer("web")
	a.slowness = time.Second
	managed(t, a, 4, func(t *testing.T, m *Manager) {
		p := a.get("web")
		for i := range 50 {
			s := runs(p)
			s.Message = strconv.Itoa(i)
			m.Set(p, s)
			time.Sleep(10 * time.Millisecond)
		}
		settle(5 * time.Second)
		if got := a.get("web").Status.Message; got != "49" {
			t.Errorf("the API has status %q, want the newest", got)
		}
		if n := a.count("patch web"); n != 2 {
			t.Errorf("%d patches, want the first and the newest", n)
		}
	})
}

func TestPodsDoNotWaitForEachOther(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	a := newServer(names...)
	a.slowness = time.Second
	managed(t, a, 4, func(t *testing.T, m *Manager) {
		for _, name := range names {
			p := a.get(name)
			m.Set(p, runs(p))
		}
		settle(1100 * time.Millisecond)
		if m.Pending() != 0 || a.most != 4 {
			t.Errorf("%d pending, at most %d calls at once", m.Pending(), a.most)
		}
	})
}

func TestHungCallHoldsOnlyItsPod(t *testing.T) {
	a := newServer("a", "b")
	managed(t, a, 2, func(t *testing.T, m *Manager) {
		stuck := make(chan struct{})
		a.trouble = func(_, name string) error {
			if name == "a" {
				<-stuck
			}
			return nil
		}
		for _, name := range []string{"a", "b"} {
			p := a.get(name)
			m.Set(p, runs(p))
		}
		settle(time.Second)
		if !m.Delivered("uid-b") || m.Delivered("uid-a") {
			t.Error("pod b waits for pod a")
		}
		close(stuck)
		settle(time.Second)
		if !m.Delivered("uid-a") {
			t.Error("pod a is not delivered after all")
		}
	})
}

func TestUrgentFirst(t *testing.T) {
	a := newServer("slow", "plain", "ready", "gone")
	a.slowness = time.Second
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("slow")
		m.Set(p, runs(p))
		synctest.Wait()
		p = a.get("plain")
		m.Set(p, status.Generate(p, ready(), inputs()))
		p = a.get("ready")
		m.Set(p, runs(p))
		p = a.change("gone", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		m.Terminated(p, ended(p))
		settle(10 * time.Second)
		place := func(call string) int { return slices.Index(a.calls, call) }
		if !(place("patch ready") < place("patch plain") && place("patch gone") < place("patch plain")) {
			t.Errorf("order of calls: %v", a.calls)
		}
	})
}

func TestOutage(t *testing.T) {
	names := []string{"a", "b", "c"}
	a := newServer(names...)
	managed(t, a, 2, func(t *testing.T, m *Manager) {
		a.trouble = func(string, string) error { return errors.New("connection refused") }
		for _, name := range names {
			p := a.get(name)
			m.Set(p, runs(p))
		}
		settle(10 * time.Minute)
		p := a.get("a")
		s := runs(p)
		s.Message = "newest"
		m.Set(p, s)
		if calls := len(a.calls); calls > 3*75 {
			t.Errorf("%d calls in ten minutes of outage", calls)
		}
		a.mu.Lock()
		a.trouble = nil
		a.mu.Unlock()
		for m.Pending() == len(names) {
			settle(time.Millisecond)
		}
		settle(time.Millisecond)
		if m.Pending() != 0 || a.get("a").Status.Message != "newest" {
			t.Errorf("the apiserver answers again, but %d statuses wait; message %q", m.Pending(),
				a.get("a").Status.Message)
		}
	})
}

func TestTerminatedIsDeleted(t *testing.T) {
	a := newServer("web")
	managed(t, a, 2, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(0)
		p = a.get("web")
		m.Terminated(p, ended(p))
		settle(time.Minute)
		if a.count("delete web") != 0 || a.get("web").Status.Phase != v1.PodSucceeded {
			t.Fatal("a pod without a deletion is deleted, or its phase is wrong")
		}
		failing := true
		a.trouble = func(verb, _ string) error {
			if verb == "delete" && failing {
				return apierrors.NewInternalError(errors.New("etcd"))
			}
			return nil
		}
		m.UpdateFromAPI(a.change("web", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
		settle(time.Minute)
		a.mu.Lock()
		failing = false
		a.mu.Unlock()
		settle(lastRetry)
		if a.get("web") != nil || m.Pending() != 0 {
			t.Error("the pod is not deleted after all")
		}
		calls := len(a.calls)
		m.Set(p, runs(p))
		settle(time.Minute)
		if len(a.calls) != calls {
			t.Errorf("calls for a pod that is gone: %v", a.calls[calls:])
		}
	})
}

func TestNotDeletedBeforeTerminated(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.change("web", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		m.Set(p, ended(p))
		settle(time.Minute)
		if a.count("delete web") != 0 {
			t.Error("deleted although volumes and cgroup may be there")
		}
	})
}

func TestPhaseWaitsForContainers(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		in := inputs()
		in.Override = &status.Override{
			Reason:    "Evicted",
			Message:   "m",
			Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue},
		}
		m.Set(p, status.Generate(p, ready(ctr("1", "a", running, 0)), in))
		settle(0)
		if s := a.get("web").Status; s.Phase != v1.PodPending ||
			podutil.Condition(s.Conditions, v1.DisruptionTarget) != nil {
			t.Errorf("phase %s while a container runs", s.Phase)
		}
		last, _ := m.Last(p.UID)
		in.Old, in.Terminal = &last, true
		m.Set(p, status.Generate(p, ready(ctr("1", "a", dead, 143)), in))
		settle(0)
		if s := a.get("web").Status; s.Phase != v1.PodFailed || s.Reason != "Evicted" ||
			podutil.Condition(s.Conditions, v1.DisruptionTarget) == nil {
			t.Errorf("status after the end: %+v", s)
		}
	})
}

func TestAnotherClientWrites(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(0)
		m.UpdateFromAPI(a.change("web", func(p *v1.Pod) { p.Status.PodIP = "1.2.3.4" }))
		settle(9 * time.Second)
		if n := a.count("patch web"); n != 1 {
			t.Errorf("%d patches before the 10 s are over", n)
		}
		settle(2 * time.Second)
		if got := a.get("web").Status.PodIP; got != "10.0.0.2" {
			t.Errorf("what another client wrote stays: %s", got)
		}
		stale := p
		m.UpdateFromAPI(stale)
		settle(time.Minute)
		if n := a.count("patch web"); n != 2 {
			t.Errorf("%d patches, want 2: an old object of the watch is no change", n)
		}
	})
}

func TestServerThatDropsAFieldIsNotFought(t *testing.T) {
	a := newServer("web")
	a.drop = func(p *v1.Pod) { p.Status.Resources, p.Status.HostIPs = nil, nil }
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(0)
		m.UpdateFromAPI(a.get("web"))
		settle(time.Hour)
		m.UpdateFromAPI(a.change("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }))
		settle(time.Hour)
		if n := a.count("patch web"); n != 2 {
			t.Errorf("%d patches, want 2: one that writes and one that shows what the server drops", n)
		}
	})
}

// TestAnotherWritesWhileAPatchIsUnderWay into a field that the patch does not carry, since that
// field was right when the patch was made.
func TestAnotherWritesWhileAPatchIsUnderWay(t *testing.T) {
	for name, drop := range map[string]func(*v1.Pod){
		"the server takes all":    nil,
		"the server drops fields": func(p *v1.Pod) { p.Status.Resources, p.Status.HostIPs = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := newServer("web")
			a.drop = drop
			managed(t, a, 1, func(t *testing.T, m *Manager) {
				p := a.get("web")
				m.Set(p, runs(p))
				settle(time.Minute)
				p = a.get("web")
				m.UpdateFromAPI(p)

				a.slowness = time.Second
				s := runs(p)
				s.ContainerStatuses[0].RestartCount++
				m.Set(p, s)
				settle(500 * time.Millisecond)
				foreign := a.change("web", func(p *v1.Pod) {
					podutil.SetCondition(&p.Status,
						v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "Another"})
				})
				settle(time.Second)
				m.UpdateFromAPI(foreign) // late, and older than the answer to our patch
				m.UpdateFromAPI(a.get("web"))
				m.Set(p, s)
				settle(time.Minute)
				got := a.get("web").Status
				if c := podutil.Condition(got.Conditions, v1.PodReady); c.Status != v1.ConditionTrue ||
					got.ContainerStatuses[0].RestartCount != 1 {
					t.Errorf("Ready is %s for %q, restart count %d", c.Status, c.Reason,
						got.ContainerStatuses[0].RestartCount)
				}
				calls := a.count("patch web")
				settle(time.Hour)
				if n := a.count("patch web") - calls; n != 0 {
					t.Errorf("%d patches of a status that the API has", n)
				}
			})
		})
	}
}

func TestGoneAndReplaced(t *testing.T) {
	a := newServer("web", "new")
	managed(t, a, 2, func(t *testing.T, m *Manager) {
		old := a.get("new")
		a.change("new", func(p *v1.Pod) { p.UID = "another" })
		m.Set(old, runs(old))
		p := a.get("web")
		a.mu.Lock()
		delete(a.pods, "web")
		a.mu.Unlock()
		m.Set(p, runs(p))
		settle(time.Hour)
		if m.Pending() != 0 || a.count("patch web") != 1 || a.count("patch new") != 1 ||
			a.get("new").Status.Phase != v1.PodPending {
			t.Errorf("%d pending, calls %v", m.Pending(), a.calls)
		}
		m.Forget(p.UID)
		if _, known := m.Last(p.UID); known {
			t.Error("a forgotten pod is remembered")
		}
	})
}

func TestConflictIsTriedAgain(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		times := 0
		a.trouble = func(verb, name string) error {
			if times++; verb == "patch" && times == 1 {
				return apierrors.NewConflict(pods, name, errors.New("busy"))
			}
			return nil
		}
		p := a.get("web")
		m.Set(p, runs(p))
		settle(time.Second)
		if !m.Delivered(p.UID) || a.count("get web") != 1 {
			t.Errorf("calls %v", a.calls)
		}
	})
}

func TestForgetWhileInFlight(t *testing.T) {
	a := newServer("web")
	a.slowness = time.Second
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		synctest.Wait()
		m.Forget(p.UID)
		settle(time.Minute)
		if m.Pending() != 0 || len(a.calls) != 1 {
			t.Errorf("calls %v", a.calls)
		}
	})
}

func TestOptions(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no client is accepted")
	}
	if _, err := New(Options{Client: newServer(), Workers: -1}); err == nil {
		t.Error("negative workers are accepted")
	}
}
