package pods

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// admissions admits all pods but those in reject, and counts.
type admissions struct {
	mu     sync.Mutex
	reject map[types.UID]admission.Result
	asked  map[types.UID]int
	heard  int
	ended  map[types.UID]bool
	gone   int
	ran    int
	before func(p *v1.Pod) // called before each answer, if it is set
	judged *v1.Pod         // what answers say was judged
	later  []string        // reasons of pods that were admitted and rejected later
	placed admission.Placed
}

func (a *admissions) Add(*v1.Pod, podsyncv1.PodSource) {}

func (a *admissions) Heard(podsyncv1.PodSource) { a.count(&a.heard) }
func (a *admissions) Forget(types.UID)          { a.count(&a.gone) }
func (*admissions) Removed(types.UID)           {}

func (a *admissions) Placed(context.Context) (admission.Placed, error) { return a.placed, nil }

func (a *admissions) Ended(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[uid] = true
}

func (a *admissions) hasEnded(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended[uid]
}

func (a *admissions) count(what *int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*what++
}

func (a *admissions) Rejected(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.later = append(a.later, reason)
}

func (a *admissions) Admit(_ context.Context, p *v1.Pod, _ podsyncv1.PodSource,
	running bool) (admission.Result, error) {
	if a.before != nil {
		a.before(p)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[p.UID]++
	if running {
		a.ran++
	}
	result := a.reject[p.UID]
	result.Judged = a.judged
	return result, nil
}

func TestRejectedPodFailsAndTouchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := fake.NewRuntime(time.Now)
		n := newNode(t, cri)
		defer n.run()()
		p := testPod("a")
		n.admission.reject[p.UID] = admission.Result{Reason: "NodePorts", Message: "Predicate NodePorts failed: taken"}
		n.dispatcher.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
		synctest.Wait()

		s, _ := n.Last(p.UID)
		if s.Phase != v1.PodFailed || s.Reason != "NodePorts" ||
			s.Message != "Pod was rejected: Predicate NodePorts failed: taken" {
			t.Errorf("reported %s %s %q", s.Phase, s.Reason, s.Message)
		}
		if len(s.ContainerStatuses) != 0 {
			t.Errorf("a pod that never ran shows containers: %v", s.ContainerStatuses)
		}
		if event := <-n.events.Events; !strings.HasPrefix(event,
			"Warning NodePorts Predicate NodePorts failed: taken") {
			t.Errorf("event %q", event)
		}
		if sandboxes(t, cri) != 0 {
			t.Error("a rejected pod got a sandbox")
		}
		if active := n.workers.Pods(); len(active) != 0 {
			t.Errorf("a rejected pod still counts: %v", active)
		}
		n.dispatcher.RemovePod(p.UID, podsyncv1.PodSource_POD_SOURCE_API)
		synctest.Wait()
		if n.workers.Known(p.UID) || n.admission.gone != 1 || !n.admission.hasEnded(p.UID) {
			t.Errorf("known %v, forgotten %d", n.workers.Known(p.UID), n.admission.gone)
		}
	})
}

// TestNodeWithoutRoomForAVolumeRejectsItsPod: what began before its volumes were there ends.
func TestNodeWithoutRoomForAVolumeRejectsItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := fake.NewRuntime(time.Now)
		n := newNode(t, cri)
		defer n.run()()
		p := testPod("a")
		waits := errors.New("volume not attached according to node status")
		n.breaks("Mount", p.UID, errors.Join(
			&volumes.Error{Volume: "data", Err: &volumes.LimitExceeded{Err: waits}},
			&volumes.Error{Volume: "more", Step: volumes.StepUnattached, Err: waits},
			&volumes.Error{Volume: "config", Err: errors.New("no such ConfigMap")},
		))
		n.dispatcher.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
		synctest.Wait()

		s, _ := n.Last(p.UID)
		want := "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data " +
			"more config], unattached volumes=[data more], failed to process volumes=[]: context deadline exceeded"
		if s.Phase != v1.PodFailed || s.Reason != "VolumeAttachmentLimitExceeded" || s.Message != want {
			t.Errorf("reported %s %s %q", s.Phase, s.Reason, s.Message)
		}
		if !slices.Equal(n.admission.later, []string{"VolumeAttachmentLimitExceeded"}) {
			t.Errorf("counted: %q", n.admission.later)
		}
		list, err := cri.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sandbox := range list.GetItems() {
			if sandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Error("a rejected pod has a sandbox that runs")
			}
		}
		if active := n.workers.Pods(); len(active) != 0 {
			t.Errorf("a rejected pod still counts: %v", active)
		}
	})
}

func TestAdmissionIsAskedOnceAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, fake.NewRuntime(time.Now))
		defer n.run()()
		p, over := testPod("a"), testPod("b")
		over.Status.Phase = v1.PodFailed
		n.dispatcher.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
		n.dispatcher.SetPod(over, podsyncv1.PodSource_POD_SOURCE_API)
		n.dispatcher.SourceSynced(podsyncv1.PodSource_POD_SOURCE_API)
		synctest.Wait()
		n.workers.Wake(p.UID, "test")
		synctest.Wait()
		if want := map[types.UID]int{p.UID: 1}; !maps.Equal(n.admission.asked, want) || n.admission.heard != 1 {
			t.Errorf("asked %v, heard %d", n.admission.asked, n.admission.heard)
		}
	})
}

func TestPodRejectedBeforeTheRestartKeepsItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, fake.NewRuntime(time.Now))
		defer n.run()()
		p := testPod("a")
		p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: no"}
		n.dispatcher.SetPod(p, podsyncv1.PodSource_POD_SOURCE_API)
		n.wait(adoptionJitter)
		s, ok := n.Last(p.UID)
		if !ok || s.Reason != "OutOfcpu" || len(s.ContainerStatuses) != 0 {
			t.Errorf("reported %v %+v", ok, s)
		}
	})
}

func sandboxes(t *testing.T, cri *fake.Runtime) int {
	t.Helper()
	list, err := cri.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.GetItems())
}
