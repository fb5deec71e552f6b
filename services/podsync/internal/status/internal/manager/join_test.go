package manager

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// waits is the status of a pod whose container is being created.
func waits(p *v1.Pod, message string) v1.PodStatus {
	s := status.Generate(p, &pod.State{}, inputs())
	s.Message = message
	return s
}

// TestStatusesOfAStartJoin: what leads to a pod that is ready within the time is one write with it.
func TestStatusesOfAStartJoin(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, waits(p, "creating"))
		settle(100 * time.Millisecond)
		m.Set(p, waits(p, "created"))
		settle(100 * time.Millisecond)
		if n := a.count("patch web"); n != 0 || m.Pending() != 1 {
			t.Errorf("%d patches before another status could follow, %d pods pending", n, m.Pending())
		}
		m.Set(p, runs(p))
		settle(0)
		if got := a.get("web"); got.Status.Phase != v1.PodRunning || a.count("patch web") != 1 {
			t.Errorf("a pod that is ready has phase %s after %d patches", got.Status.Phase, a.count("patch web"))
		}
	})
}

// TestAStatusWaitsNoLonger: one that no other follows arrives, also while others follow one another without end.
func TestAStatusWaitsNoLonger(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, waits(p, "creating"))
		settle(joinPeriod - time.Millisecond)
		m.Set(p, waits(p, "created"))
		settle(time.Millisecond)
		if got := a.get("web").Status.Message; got != "created" {
			t.Errorf("after %v the API has %q", joinPeriod, got)
		}
		for range 100 {
			m.Set(p, waits(p, time.Now().String()))
			settle(joinPeriod / 10)
		}
		if n := a.count("patch web"); n < 8 || n > 12 {
			t.Errorf("%d patches for 100 statuses in ten times %v", n, joinPeriod)
		}
	})
}

// TestAnEndDoesNotWait: others wait for the resources of a pod that has ended.
func TestAnEndDoesNotWait(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, ended(p))
		settle(0)
		if n := a.count("patch web"); n != 1 {
			t.Errorf("%d patches at the end of the pod", n)
		}
	})
}

// TestAStatusOfAPodThatRunsDoesNotWait: a user waits for what happens to it, such as a resize.
func TestAStatusOfAPodThatRunsDoesNotWait(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		m.Set(p, runs(p))
		settle(0)
		before := a.count("patch web")
		resized := runs(p)
		resized.Conditions = append(resized.Conditions, v1.PodCondition{
			Type: v1.PodResizeInProgress, Status: v1.ConditionTrue,
		})
		m.Set(p, resized)
		settle(0)
		if n := a.count("patch web") - before; n != 1 {
			t.Errorf("%d patches for a pod that runs and is resized", n)
		}
	})
}
