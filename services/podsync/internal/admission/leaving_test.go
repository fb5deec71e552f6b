package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
)

// withPort is a pod that needs a port of the node.
func withPort(name string, second int) *v1.Pod {
	return born(onPort(name, "", 80, v1.ProtocolTCP), second)
}

func TestASuccessorWaitsForTheEndOfAPodThatWasRemoved(t *testing.T) {
	for reason, pods := range map[string][2]*v1.Pod{
		"NodePorts": {withPort("old", 1), withPort("next", 2)},
		"OutOfcpu":  {born(requesting("old", "cpu", "1500m"), 1), born(requesting("next", "cpu", "1500m"), 2)},
	} {
		t.Run(reason, func(t *testing.T) {
			for name, test := range map[string]struct {
				end     func(m *machine, old *v1.Pod)
				want    map[string]string
				outcome string
			}{
				"it ends": {func(m *machine, old *v1.Pod) { m.Ended(old.UID) },
					map[string]string{"old": "admitted", "next": "admitted"}, "ended"},
				"it does not end": {func(*machine, *v1.Pod) { time.Sleep(leavingPatience) },
					map[string]string{"old": "admitted", "next": "admitted"}, "overdue"},
			} {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m, a := newMachine(t), &answers{got: map[string]string{}}
						m.Heard(api)
						m.ask(t.Context(), a, pods[0], api)
						synctest.Wait()
						m.Removed(pods[0].UID)
						m.ask(t.Context(), a, pods[1], api)
						m.ask(t.Context(), a, born(requesting("small", "cpu", "100m"), 3), api)
						time.Sleep(leavingPatience / 2)
						a.want(t, map[string]string{"old": "admitted", "small": "admitted"})
						test.end(m, pods[0])
						test.want["small"] = "admitted"
						a.want(t, test.want)
						if n := testutil.ToFloat64(m.metrics.waits.WithLabelValues(test.outcome)); n != 1 {
							t.Errorf("%v waits %s", n, test.outcome)
						}
					})
				})
			}
		})
	}
}

// TestAPodThatWasRemovedIsNoReasonForARejection, nor does it hide one.
func TestAPodThatWasRemovedIsNoReasonForARejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		old := born(requesting("old", "cpu", "1"), 1)
		m.ask(t.Context(), a, old, api)
		synctest.Wait()
		m.Removed(old.UID)
		if v := m.Judge(t.Context(), born(requesting("asked", "cpu", "2"), 2)); !v.Admitted() {
			t.Errorf("judged %s", v.Reason)
		}
		m.ask(t.Context(), a, born(requesting("large", "cpu", "3"), 2), api)
		a.want(t, map[string]string{"old": "admitted", "large": "OutOfcpu"})
	})
}

// TestAPodThatWasRemovedBeforeItAskedTakesNoPlace: nothing of it runs.
func TestAPodThatWasRemovedBeforeItAskedTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		old, next := withPort("old", 1), withPort("next", 2)
		m.Add(old, api)
		m.Removed(old.UID)
		m.ask(t.Context(), a, next, api)
		a.want(t, map[string]string{"next": "admitted"})
	})
}

// TestACriticalPodPreemptsNoPodForAPlaceThatGetsFree.
func TestACriticalPodPreemptsNoPodForAPlaceThatGetsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := newMachine(t), &answers{got: map[string]string{}}
		m.Heard(api)
		old, other := born(requesting("old", "cpu", "1"), 1), born(requesting("other", "cpu", "1"), 2)
		m.ask(t.Context(), a, old, api)
		m.ask(t.Context(), a, other, api)
		synctest.Wait()
		m.Removed(old.UID)
		critical := born(requesting("critical", "cpu", "1"), 3)
		critical.Spec.Priority = new(int32(2_000_000_000))
		m.ask(t.Context(), a, critical, api)
		a.want(t, map[string]string{"old": "admitted", "other": "admitted"})
		m.Ended(old.UID)
		a.want(t, map[string]string{"old": "admitted", "other": "admitted", "critical": "admitted"})
		if len(m.evicted) != 0 {
			t.Errorf("preempted %q", m.evicted)
		}
	})
}
