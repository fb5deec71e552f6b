package pods

import (
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// probes are what a prober says of containers, by their IDs.
type probes struct {
	mu                  sync.Mutex
	readiness, liveness map[string]decide.Result
}

func (s *probes) Of(types.UID) decide.Results {
	s.mu.Lock()
	defer s.mu.Unlock()
	return decide.Results{
		Readiness: maps.Clone(s.readiness), Liveness: maps.Clone(s.liveness), Startup: map[string]decide.Result{},
	}
}

// probed returns a node that runs, and what a prober says there.
func probed(t *testing.T) (*node, *probes) {
	t.Helper()
	n := newNode(t, newRuntime())
	s := &probes{readiness: map[string]decide.Result{}, liveness: map[string]decide.Result{}}
	n.dispatcher.deps.Probes = s
	t.Cleanup(n.run())
	return n, s
}

// ready has the readiness probe of a pod's container say this, and the node hear of it.
func (s *probes) ready(n *node, p *v1.Pod, id string, result decide.Result) {
	s.mu.Lock()
	s.readiness[id] = result
	s.mu.Unlock()
	n.workers.Probed(p.UID)
	n.wait(time.Second)
}

// isReady reports whether the pod is ready as it was reported last.
func (n *node) isReady(p *v1.Pod) bool {
	c := podutil.Condition(n.status(p.UID).Conditions, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// pair is a pod of c, which has a readiness probe, and d.
func pair() *v1.Pod {
	p := testPod("a")
	*p.Spec.TerminationGracePeriodSeconds = 300
	p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1}
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d", Image: "busybox"})
	return p
}

// TestReadinessIsReportedBesideLongSteps: whatever the worker is busy with, the endpoints of a pod follow its probe.
func TestReadinessIsReportedBesideLongSteps(t *testing.T) {
	for name, begin := range map[string]func(n *node, s *probes, p *v1.Pod){
		"a container is stopped": func(n *node, s *probes, p *v1.Pod) {
			n.cri.SetProgram("d", fake.Program{StopDelay: 5 * time.Minute})
			n.apply(p)
			s.mu.Lock()
			s.liveness[n.alive(p, "d")[0]] = decide.Failure
			s.mu.Unlock()
			n.workers.Probed("a")
		},
		"an image is pulled": func(n *node, _ *probes, p *v1.Pod) {
			n.slowImage, p.Spec.Containers[1].Image = "slow", "slow"
			n.apply(p)
		},
		"a volume is mounted": func(n *node, _ *probes, p *v1.Pod) {
			n.apply(p)
			n.mu.Lock()
			n.hung["a"], n.mounted["a"] = true, false
			n.mu.Unlock()
			n.crash(p, "d", 1)
		},
		"a hook runs": func(n *node, _ *probes, p *v1.Pod) {
			p.Spec.Containers[1].Lifecycle = &v1.Lifecycle{
				PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 300}},
			}
			n.apply(p)
		},
		"the pod ends": func(n *node, _ *probes, p *v1.Pod) {
			n.cri.SetProgram("c", fake.Program{StopDelay: 5 * time.Minute})
			n.cri.SetProgram("d", fake.Program{StopDelay: 5 * time.Minute})
			n.apply(p)
			n.dispatcher.SetPod(deleted(p, 300), api)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, s := probed(t)
				p := pair()
				begin(n, s, p)
				n.wait(10 * time.Second)
				id := n.alive(p, "c")[0]
				for _, ready := range []bool{true, false, true} {
					result := decide.Failure
					if ready {
						result = decide.Success
					}
					s.ready(n, p, id, result)
					if got := n.container("c").Ready; got != ready {
						t.Fatalf("c is reported as ready: %v, its probe says %v", got, ready)
					}
				}
			})
		})
	}
}

// TestAContainerThatEndsIsReportedBesideTheStopOfOthers: as ended and not ready, while the others are what they are.
func TestAContainerThatEndsIsReportedBesideTheStopOfOthers(t *testing.T) {
	for name, end := range map[string]func(n *node, p *v1.Pod){
		"deleted": func(n *node, p *v1.Pod) { n.dispatcher.SetPod(deleted(p, 300), api) },
		"evicted": func(n *node, p *v1.Pod) {
			n.workers.worker(p.UID).evict(eviction{causeEvicted, status.Override{Reason: "Evicted"}, nil})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, s := probed(t)
				n.cri.SetProgram("c", fake.Program{StopDelay: 10 * time.Second, ExitCode: 3})
				n.cri.SetProgram("d", fake.Program{StopDelay: 2 * time.Minute})
				p := pair()
				n.apply(p)
				s.ready(n, p, n.alive(p, "c")[0], decide.Success)
				end(n, p)
				n.wait(5 * time.Second)
				if name == "deleted" && !n.isReady(p) || n.container("c").State.Running == nil {
					t.Fatalf("while all of it runs: %+v", n.status("a"))
				}
				before := n.sets("a")
				n.wait(10 * time.Second)
				c, d := n.container("c"), n.container("d")
				if ended := c.State.Terminated; ended == nil || ended.ExitCode != 3 || c.Ready || n.isReady(p) {
					t.Fatalf("c has ended, and is reported as %+v, the pod as ready: %v", c, n.isReady(p))
				}
				if d.State.Running == nil || !d.Ready || n.status("a").Phase == v1.PodSucceeded {
					t.Fatalf("d still runs, and is reported as %+v", d)
				}
				if got := n.sets("a") - before; got > 2 {
					t.Errorf("%d reports for the end of one container", got)
				}
				n.wait(5 * time.Minute)
				if s := n.status("a"); s.ContainerStatuses[1].State.Terminated == nil ||
					name == "deleted" && !n.final["a"] || s.Phase != v1.PodFailed {
					t.Fatalf("in the end: %+v", s)
				}
			})
		})
	}
}

// TestEndsAreReportedFewTimes: containers that end together make one report.
func TestEndsAreReportedFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Containers = nil
		for i := range 20 {
			name := "c" + string(rune('a'+i))
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "busybox"})
			n.cri.SetProgram(name, fake.Program{StopDelay: time.Duration(i) * time.Millisecond})
		}
		n.cri.SetProgram("ca", fake.Program{StopDelay: 20 * time.Second})
		n.apply(p)
		before := n.sets("a")
		n.apply(deleted(p, 30))
		n.wait(10 * time.Second)
		if got := n.sets("a") - before; got > 3 {
			t.Errorf("%d reports", got)
		}
		if n.container("cb").State.Terminated == nil || n.container("ca").State.Running == nil {
			t.Errorf("status %+v", n.status("a").ContainerStatuses)
		}
	})
}

// TestACrashBesideALongStepIsReported: what has ended is not ready, although the worker comes to its restart later.
func TestACrashBesideALongStepIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := probed(t)
		p := pair()
		n.slowImage, p.Spec.Containers[1].Image = "slow", "slow"
		n.apply(p)
		s.ready(n, p, n.alive(p, "c")[0], decide.Success)
		n.exit("c")
		n.wait(5 * time.Second)
		if c := n.container("c"); c.State.Terminated == nil || c.Ready {
			t.Fatalf("reported as %+v", c)
		}
	})
}

// TestAContainerThatIsStoppedToStartAgainHasNotEnded: its policy alone would not start it again, so that its end, once
// it is reported, would be one for good.
func TestAContainerThatIsStoppedToStartAgainHasNotEnded(t *testing.T) {
	for name, begin := range map[string]func(n *node, s *probes, p *v1.Pod){
		"its probe fails": func(n *node, s *probes, p *v1.Pod) {
			s.mu.Lock()
			s.liveness[n.alive(p, "c")[0]] = decide.Failure
			s.mu.Unlock()
			n.workers.Probed("a")
		},
		"its sandbox is replaced": func(n *node, _ *probes, p *v1.Pod) {
			p = p.DeepCopy()
			p.Spec.HostNetwork = true // what the sandbox is not
			p.Generation++
			n.dispatcher.SetPod(p, api)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, s := probed(t)
				n.cri.SetProgram("c", fake.Program{StopDelay: time.Second})
				p := testPod("a")
				p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
				n.apply(p)
				n.mu.Lock()
				n.slowImage = "busybox"
				n.mu.Unlock()
				begin(n, s, p)
				n.wait(20 * time.Second)
				if len(n.alive(p, "c")) != 0 || n.container("c").State.Running == nil || n.status("a").Phase != v1.PodRunning {
					t.Fatalf("while its image is pulled: %s, %+v", n.status("a").Phase, n.container("c").State)
				}
				n.wait(time.Minute)
				if c := n.container("c"); !n.running("a") || c.RestartCount != 1 {
					t.Fatalf("in the end: %s, %+v", n.status("a").Phase, c)
				}
			})
		})
	}
}

// TestOrdinarySyncsCostNoLookBeside: what the worker looks at soon by itself is not looked at beside it, also if
// something happened before that was due for a report by now.
func TestOrdinarySyncsCostNoLookBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := probed(t)
		p := pair()
		n.apply(p)
		n.wait(10 * time.Second)
		looks := func() int { return len(n.cri.Calls("ListPodSandbox")) }
		w := n.workers.worker("a")
		before, sets := looks(), n.sets("a")
		n.workers.Wake("a", "test")
		n.wait(wakeDelay - 100*time.Millisecond)
		if got := looks() - before; got != 1 {
			t.Errorf("a wake costs %d looks", got)
		}
		if !w.reporter.notices.at.IsZero() || n.sets("a") != sets+1 {
			t.Errorf("a look is due although the worker has looked; %d reports", n.sets("a")-sets)
		}
		n.mu.Lock()
		n.hung["a"], n.mounted["a"] = true, false
		n.mu.Unlock()
		if err := n.cri.ExitContainer(n.alive(p, "d")[0], 1); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test") // the sync looks, and mounts
		n.wait(50 * time.Millisecond)
		before = looks()
		n.workers.Wake("a", "test")
		n.wait(wakeDelay - time.Millisecond)
		if got := looks() - before; got != 0 {
			t.Errorf("%d looks within %v", got, wakeDelay)
		}
		n.wait(time.Second)
		if got := looks() - before; got != 1 {
			t.Errorf("%d looks beside a sync that lasts", got)
		}
	})
}
