package pods

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// granting answers for the service resources.
type granting struct {
	mu sync.Mutex
	// answer is asked for each question; nil grants. What it waits for is bounded by ctx.
	answer  func(ctx context.Context, p *v1.Pod) (admission.Result, error)
	asked   map[types.UID]int
	running int
	placed  []types.UID
	known   map[types.UID]bool
	unready error
	gone    map[types.UID]bool
}

func newGranting() *granting {
	return &granting{asked: map[types.UID]int{}, known: map[types.UID]bool{}, gone: map[types.UID]bool{}}
}

func (g *granting) Needs(p *v1.Pod) bool {
	for c := range podutil.Containers(&p.Spec) {
		if len(podutil.Extended(c)) > 0 {
			return true
		}
	}
	return false
}

func (g *granting) Allocate(ctx context.Context, p *v1.Pod, placed admission.Placed,
	running bool) (admission.Result, error) {
	g.mu.Lock()
	g.asked[p.UID]++
	g.placed = placed.UIDs
	if running {
		g.running++
	}
	answer := g.answer
	g.mu.Unlock()
	if answer != nil {
		if v, err := answer(ctx, p); err != nil || !v.Admitted() {
			return v, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known[p.UID] = true
	return admission.Result{}, nil
}

// lastPlaced are the pods with a place as the last question has named them.
func (g *granting) lastPlaced() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.placed
}

// forRunning is how many questions were for a pod that runs.
func (g *granting) forRunning() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

func (g *granting) answers(with func(ctx context.Context, p *v1.Pod) (admission.Result, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = with
}

func (g *granting) Lacks(p *v1.Pod, c *v1.Container) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(podutil.Extended(c)) > 0 && !g.known[p.UID]
}

func (g *granting) Container(_ context.Context, _ *v1.Pod, c *v1.Container) (*resourcesv1.ContainerResources, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(podutil.Extended(c)) == 0 {
		return nil, nil
	}
	return &resourcesv1.ContainerResources{Name: c.Name, Env: map[string]string{"GPU": "1"}}, g.unready
}

func (g *granting) Statuses(uid types.UID) (map[string][]v1.ResourceStatus, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return map[string][]v1.ResourceStatus{"c": {{
		Name: gpu, Resources: []v1.ResourceHealth{{ResourceID: "0", Health: v1.ResourceHealthStatusHealthy}},
	}}}, g.known[uid]
}

func (g *granting) Forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone[uid] = true
	delete(g.known, uid)
}

func (g *granting) times(uid types.UID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked[uid]
}

const gpu = "example.com/gpu"

// gpuPod is a pod with a device.
func gpuPod(uid types.UID) *v1.Pod {
	p := testPod(uid)
	list := v1.ResourceList{gpu: resource.MustParse("1")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

func waitingOf(t *testing.T, n *node, uid types.UID) *v1.ContainerStateWaiting {
	t.Helper()
	s, ok := n.Last(uid)
	if !ok || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State.Waiting == nil {
		t.Fatalf("pod %s shows %v", uid, s.ContainerStatuses)
	}
	return s.ContainerStatuses[0].State.Waiting
}

func TestAPodGetsItsDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.apply(gpuPod("a"))
		n.apply(testPod("b"))
		s, _ := n.Last("a")
		if s.Phase != v1.PodRunning || n.grants.times("a") != 1 || n.grants.times("b") != 0 {
			t.Errorf("phase %s, asked %v", s.Phase, n.grants.asked)
		}
		if n.given("a").GetEnv()["GPU"] != "1" || n.given("b") != nil {
			t.Errorf("configured with %v and %v", n.given("a"), n.given("b"))
		}
		if got := s.ContainerStatuses[0].AllocatedResourcesStatus; len(got) != 1 || got[0].Name != gpu {
			t.Errorf("allocatedResourcesStatus: %v", got)
		}
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Minute)
		if !n.grants.gone["a"] {
			t.Error("the grant of a pod that is gone is kept")
		}
	})
}

// A plugin that is away, or a resources that is, holds up the pods that need it and no other.
func TestAPodWaitsForItsDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.grants.answers(func(context.Context, *v1.Pod) (admission.Result, error) {
			return admission.Result{}, errors.New("waits for the device plugin of example.com/gpu")
		})
		n.apply(gpuPod("a"))
		n.apply(testPod("b"))
		if s, _ := n.Last("b"); s.Phase != v1.PodRunning {
			t.Errorf("a pod without devices is %s", s.Phase)
		}
		if w := waitingOf(t, n, "a"); w.Reason != "ContainerCreating" ||
			w.Message != "waits for the device plugin of example.com/gpu" {
			t.Errorf("waits as %v", w)
		}
		if !strings.HasPrefix(<-n.events.Events, "Warning ResourcesNotReady waits for the device plugin") {
			t.Error("no Event says what the pod waits for")
		}
		if got := standingOf(t, n, "a"); got.Awaits == "" || got.FailedStep != "allocate the pod's devices" || got.Admitted {
			t.Errorf("standing: %+v", got)
		}
		before := n.grants.times("a")
		n.wait(time.Minute)
		if tries := n.grants.times("a") - before; tries < 3 || tries > 10 {
			t.Errorf("asked %d times in a minute", tries)
		}
		n.grants.answers(nil)
		n.workers.Wake("a", "resources")
		n.wait(time.Second)
		s, _ := n.Last("a")
		if got := standingOf(t, n, "a"); s.Phase != v1.PodRunning || got.Awaits != "" || !got.Admitted {
			t.Errorf("phase %s, standing %+v", s.Phase, got)
		}
	})
}

// A question that hangs shows in the status before its deadline, and ends with the pod.
func TestAQuestionThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.grants.answers(func(ctx context.Context, _ *v1.Pod) (admission.Result, error) {
			<-ctx.Done()
			return admission.Result{}, ctx.Err()
		})
		p := gpuPod("a")
		n.apply(p)
		n.wait(answerPatience)
		if w := waitingOf(t, n, "a"); !strings.Contains(w.Message, "the answer of the service resources") {
			t.Errorf("waits as %v", w)
		}
		n.apply(deleted(p, 1))
		n.wait(time.Second)
		if !n.final["a"] {
			t.Error("a pod whose question hangs is not deleted")
		}
	})
}

func TestAPodWithoutDevicesIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := newRuntime()
		n := newNode(t, cri)
		defer n.run()()
		v := admission.Result{Reason: "UnexpectedAdmissionError", Message: "Allocate failed due to no devices"}
		n.grants.answers(func(context.Context, *v1.Pod) (admission.Result, error) { return v, nil })
		n.apply(gpuPod("a"))
		s, _ := n.Last("a")
		if s.Phase != v1.PodFailed || s.Reason != v.Reason || s.Message != "Pod was rejected: "+v.Message ||
			len(s.ContainerStatuses) != 0 {
			t.Errorf("reported %v", s)
		}
		if !n.admission.hasEnded("a") || len(n.admission.later) != 1 || sandboxes(t, cri) != 0 {
			t.Errorf("ended %v, counted %v", n.admission.hasEnded("a"), n.admission.later)
		}
	})
}

// What pods that were removed hold is free soon, so that it rejects no other.
func TestAPodWaitsForDevicesOfPodsThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.admission.placed = admission.Placed{UIDs: []types.UID{"a", "old"}, Leaving: true}
		n.grants.answers(func(context.Context, *v1.Pod) (admission.Result, error) {
			return admission.Result{Reason: "UnexpectedAdmissionError", Message: "no devices"}, nil
		})
		n.apply(gpuPod("a"))
		if w := waitingOf(t, n, "a"); w.Message != "waits for the end of pods that were removed: no devices" {
			t.Errorf("waits as %v", w)
		}
		if placed := n.grants.lastPlaced(); len(placed) != 2 {
			t.Errorf("placed: %v", placed)
		}
		n.wait(2 * leavingPatience)
		if s, _ := n.Last("a"); s.Phase != v1.PodFailed {
			t.Errorf("after the wait the pod is %s", s.Phase)
		}
	})
}

// After a restart of podsync, a pod that runs is admitted without a question. Its container is asked for before it
// starts again, if it is not known what it was granted.
func TestAPodThatRunsKeepsItsDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := newRuntime()
		before := newNode(t, cri)
		stop := before.run()
		before.apply(gpuPod("a"))
		stop()

		n := newNode(t, cri)
		defer n.run()()
		n.grants.answers(func(context.Context, *v1.Pod) (admission.Result, error) {
			return admission.Result{}, errors.New("cannot be reached")
		})
		n.apply(gpuPod("a"))
		if s, _ := n.Last("a"); s.Phase != v1.PodRunning || n.grants.times("a") != 0 {
			t.Errorf("phase %s, asked %v", s.Phase, n.grants.asked)
		}
		exitAll(t, cri)
		n.workers.Wake("a", "test")
		n.wait(5 * time.Second)
		if w := waitingOf(t, n, "a"); w.Message != "cannot be reached" || n.grants.forRunning() == 0 {
			t.Errorf("waits as %v, %d questions for a pod that runs", w, n.grants.forRunning())
		}
		n.grants.answers(nil)
		n.wait(startRetry * 2)
		if s, _ := n.Last("a"); s.ContainerStatuses[0].State.Running == nil {
			t.Errorf("shows %v", s.ContainerStatuses[0].State)
		}
	})
}

// As with the kubelet, a container whose devices cannot be prepared is one that cannot be configured.
func TestDevicesThatCannotBePrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.grants.unready = errors.New("device plugin PreStartContainer rpc failed with err: reset")
		n.apply(gpuPod("a"))
		if w := waitingOf(t, n, "a"); w.Reason != "CreateContainerConfigError" || w.Message != n.grants.unready.Error() {
			t.Errorf("waits as %v", w)
		}
	})
}

func standingOf(t *testing.T, n *node, uid types.UID) Standing {
	t.Helper()
	for _, s := range n.workers.Standings() {
		if s.Pod.UID == uid {
			return s
		}
	}
	t.Fatalf("no worker of %s", uid)
	return Standing{}
}

// exitAll ends all containers that run.
func exitAll(t *testing.T, cri *fake.Runtime) {
	t.Helper()
	list, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetContainers() {
		if err := cri.ExitContainer(c.GetId(), 1); err != nil {
			t.Fatal(err)
		}
	}
}
