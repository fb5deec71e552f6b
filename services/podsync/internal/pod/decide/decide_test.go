package decide

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	created = runtimeapi.ContainerState_CONTAINER_CREATED
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	dead    = runtimeapi.ContainerState_CONTAINER_EXITED
	unknown = runtimeapi.ContainerState_CONTAINER_UNKNOWN
)

func testPod(policy v1.RestartPolicy, names ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"},
		Spec:       v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: new(int64(30))},
	}
	for _, n := range names {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: n})
	}
	return p
}

func withInit(p *v1.Pod, init ...v1.Container) *v1.Pod {
	p.Spec.InitContainers = init
	return p
}

func plain(name string) v1.Container { return v1.Container{Name: name} }

func sidecar(name string) v1.Container {
	return v1.Container{Name: name, RestartPolicy: new(v1.ContainerRestartPolicyAlways)}
}

func ctr(id, name string, state runtimeapi.ContainerState, exit int32) pod.Container {
	return pod.Container{
		ID: id, Name: name, SandboxID: "s0", State: state, ExitCode: exit,
		Created: t0, Started: t0, Finished: t0.Add(time.Minute),
	}
}

func ready(cs ...pod.Container) *pod.State {
	return &pod.State{
		Sandboxes:  []pod.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.2"}}},
		Containers: cs,
	}
}

// brief is what a table says of actions: ids to kill and remove, names to start and wait.
type brief struct {
	Stop     StopReason
	StopIDs  []string
	Boxes    []string
	Kill     []string
	Messages []string
	Remove   []string
	Sandbox  string
	Start    []string
	Wait     []string
	Finished bool
}

func briefly(a Actions) brief {
	b := brief{Remove: a.Remove, Finished: a.Finished}
	if a.StopPod != nil {
		b.Stop = a.StopPod.Reason
		b.Boxes = a.StopPod.Sandboxes
		for _, k := range a.StopPod.Containers {
			b.StopIDs = append(b.StopIDs, k.ID)
		}
	}
	for _, k := range a.Kill {
		b.Kill = append(b.Kill, k.ID)
		b.Messages = append(b.Messages, k.Message)
	}
	if a.Sandbox != nil {
		b.Sandbox = a.Sandbox.Message
	}
	for _, s := range a.Start {
		b.Start = append(b.Start, s.Name)
	}
	for _, w := range a.Wait {
		b.Wait = append(b.Wait, w.Name)
	}
	return b
}

func TestDecide(t *testing.T) {
	deleted := func(p *v1.Pod) *v1.Pod {
		p.DeletionTimestamp = &metav1.Time{Time: t0}
		return p
	}
	phase := func(p *v1.Pod, phase v1.PodPhase) *v1.Pod {
		p.Status.Phase = phase
		return p
	}
	hostNetwork := func(p *v1.Pod) *v1.Pod {
		p.Spec.HostNetwork = true
		return p
	}
	reported := func(p *v1.Pod, exit int32) *v1.Pod {
		p.Status.ContainerStatuses = []v1.ContainerStatus{{
			Name: "a", ContainerID: "containerd://1",
			State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: exit}},
		}}
		return p
	}
	notReady := func(cs ...pod.Container) *pod.State {
		st := ready(cs...)
		st.Sandboxes[0].Ready = false
		return st
	}
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	tests := map[string]struct {
		pod               *v1.Pod
		state             *pod.State
		terminating       bool
		stopped           map[string]bool
		liveness, startup map[string]Result
		hash              func(*v1.Container) uint64
		want              brief
	}{
		"unread state": {pod: testPod(always, "a"), state: nil},
		"new pod": {pod: testPod(always, "a", "b"), state: &pod.State{}, want: brief{
			Sandbox: noSandbox,
			Start:   []string{"a", "b"},
		}},
		"all run": {pod: testPod(always, "a"), state: ready(ctr("1", "a", running, 0))},
		"one is missing": {
			pod: testPod(always, "a", "b"), state: ready(ctr("1", "a", running, 0)), want: brief{Start: []string{"b"}},
		},
		"always restarts a success": {pod: testPod(always, "a"), state: ready(ctr("1", "a", dead, 0)), want: brief{
			Start: []string{"a"},
		}},
		"on failure restarts a failure": {
			pod: testPod(onFailure, "a"), state: ready(ctr("1", "a", dead, 1)), want: brief{Start: []string{"a"}},
		},
		"on failure is content with success": {
			pod:   testPod(onFailure, "a"),
			state: ready(ctr("1", "a", dead, 0)),
			want:  brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"on failure with another running": {
			pod: testPod(onFailure, "a", "b"), state: ready(ctr("1", "a", dead, 0), ctr("2", "b", running, 0)),
		},
		"never is content with failure": {
			pod:   testPod(never, "a"),
			state: ready(ctr("1", "a", dead, 1)),
			want:  brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"never, done and stopped": {
			pod:     testPod(never, "a"),
			state:   notReady(ctr("1", "a", dead, 1)),
			stopped: map[string]bool{"s0": true},
			want:    brief{Finished: true},
		},
		"never, done and rebooted": {
			pod:   testPod(never, "a"),
			state: notReady(ctr("1", "a", dead, 1)),
			want:  brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"never starts what never ran": {
			pod: testPod(never, "a", "b"), state: ready(ctr("1", "a", dead, 1)), want: brief{Start: []string{"b"}},
		},
		"created is made again": {
			pod:   testPod(never, "a"),
			state: ready(ctr("1", "a", created, 0)),
			want:  brief{Remove: []string{"1"}, Start: []string{"a"}},
		},
		"unknown is stopped first": {
			pod: testPod(always, "a"), state: ready(ctr("1", "a", unknown, 0)),
			want: brief{
				Kill:     []string{"1"},
				Messages: []string{`Container is in "unknown" state, try killing it before restart`},
				Start:    []string{"a"},
			},
		},
		"older dead are removed": {
			pod:   testPod(always, "a"),
			state: ready(ctr("3", "a", running, 0), ctr("2", "a", dead, 1), ctr("1", "a", dead, 1)),
			want:  brief{Remove: []string{"1"}},
		},
		"one that started late is stopped": {
			pod: testPod(always, "a", "b"),
			state: ready(ctr("4", "a", running, 0), ctr("3", "b", dead, 1), ctr("2", "b", running, 0),
				ctr("1", "a", unknown, 0)),
			want: brief{
				Kill:     []string{"2"},
				Messages: []string{"Stopping container b"},
				Start:    []string{"b"},
			},
		},
		"definition changed": {
			pod:   testPod(never, "a"),
			state: ready(ctr("1", "a", running, 0)),
			hash:  func(*v1.Container) uint64 { return 7 },
			want: brief{
				Kill:     []string{"1"},
				Messages: []string{"Container a definition changed, will be restarted"},
				Start:    []string{"a"},
			},
		},
		"liveness failed": {
			pod:      testPod(always, "a"),
			state:    ready(ctr("1", "a", running, 0)),
			liveness: map[string]Result{"1": Failure},
			want: brief{
				Kill:     []string{"1"},
				Messages: []string{"Container a failed liveness probe, will be restarted"},
				Start:    []string{"a"},
			},
		},
		"liveness failed, never": {
			pod:      testPod(never, "a"),
			state:    ready(ctr("1", "a", running, 0)),
			liveness: map[string]Result{"1": Failure},
			want:     brief{Kill: []string{"1"}, Messages: []string{"Container a failed liveness probe"}},
		},
		"startup failed": {
			pod:     testPod(always, "a"),
			state:   ready(ctr("1", "a", running, 0)),
			startup: map[string]Result{"1": Failure},
			want: brief{
				Kill:     []string{"1"},
				Messages: []string{"Container a failed startup probe, will be restarted"},
				Start:    []string{"a"},
			},
		},
		"liveness of another id": {
			pod:      testPod(always, "a"),
			state:    ready(ctr("2", "a", running, 0)),
			liveness: map[string]Result{"1": Failure},
		},
		"probe failure of a terminating pod restarts nothing": {
			pod:      deleted(testPod(always, "a")),
			state:    ready(ctr("1", "a", running, 0)),
			liveness: map[string]Result{"1": Failure},
			want:     brief{Stop: StopTerminating, StopIDs: []string{"1"}, Boxes: []string{"s0"}},
		},
		"deleted and stopped": {
			pod:     deleted(testPod(always, "a")),
			state:   notReady(ctr("1", "a", dead, 0)),
			stopped: map[string]bool{"s0": true},
			want:    brief{Finished: true},
		},
		"deleted and rebooted": {
			pod:   deleted(testPod(always, "a")),
			state: notReady(ctr("1", "a", dead, 0)),
			want:  brief{Stop: StopTerminating, Boxes: []string{"s0"}},
		},
		"ended and rebooted": {
			pod:   phase(testPod(never, "a"), v1.PodSucceeded),
			state: notReady(ctr("1", "a", dead, 0)),
			want:  brief{Stop: StopTerminating, Boxes: []string{"s0"}},
		},
		"deleted before anything": {pod: deleted(testPod(always, "a")), state: &pod.State{}, want: brief{Finished: true}},
		"evicted": {
			pod: testPod(always, "a"), state: ready(ctr("1", "a", running, 0)), terminating: true,
			want: brief{Stop: StopTerminating, StopIDs: []string{"1"}, Boxes: []string{"s0"}},
		},
		"terminal phase never starts again": {
			pod:   phase(testPod(always, "a"), v1.PodFailed),
			state: &pod.State{},
			want: brief{
				Finished: true,
			},
		},
		"sandbox died": {
			pod: testPod(always, "a"), state: notReady(ctr("1", "a", running, 0)),
			want: brief{
				Stop:    StopSandboxChanged,
				StopIDs: []string{"1"},
				Boxes:   []string{"s0"},
				Sandbox: sandboxNotReady,
				Start:   []string{"a"},
			},
		},
		"sandbox died, on failure, one succeeded": {
			pod: testPod(onFailure, "a", "b"), state: notReady(ctr("1", "a", dead, 0), ctr("2", "b", dead, 137)),
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s0"},
				Sandbox: sandboxNotReady,
				Start:   []string{"b"},
			},
		},
		"sandbox died, on failure, all succeeded": {
			pod:   testPod(onFailure, "a"),
			state: notReady(ctr("1", "a", dead, 0)),
			want:  brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"sandbox died, never, ran": {
			pod:   testPod(never, "a"),
			state: notReady(ctr("1", "a", running, 0)),
			want:  brief{Stop: StopCompleted, StopIDs: []string{"1"}, Boxes: []string{"s0"}},
		},
		"sandbox died, never, one ran": {
			pod: testPod(never, "a", "b"), state: notReady(ctr("1", "a", dead, 0)),
			want: brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"sandbox died, never, one ran, forgotten by the runtime": {
			pod: reported(testPod(never, "a", "b"), 0), state: notReady(),
			want: brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"two ready sandboxes, never, one ran, forgotten by the runtime": {
			pod: reported(testPod(never, "a", "b"), 0), state: &pod.State{Sandboxes: []pod.Sandbox{
				{ID: "s1", Ready: true, IPs: []string{"10.0.0.3"}}, {ID: "s0", Ready: true, IPs: []string{"10.0.0.2"}},
			}},
			want: brief{Stop: StopCompleted, Boxes: []string{"s1", "s0"}},
		},
		"sandbox died, on failure, one succeeded, forgotten by the runtime": {
			pod: reported(testPod(onFailure, "a", "b"), 0), state: notReady(),
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s0"},
				Sandbox: sandboxNotReady,
				Start:   []string{"b"},
			},
		},
		"no sandbox, never, one ran, forgotten by the runtime": {
			pod: reported(testPod(never, "a", "b"), 0), state: &pod.State{},
			want: brief{Sandbox: noSandbox, Start: []string{"b"}},
		},
		"sandbox failed before a container, never": {
			pod: testPod(never, "a"), state: notReady(),
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s0"},
				Sandbox: sandboxNotReady,
				Start:   []string{"a"},
			},
		},
		"never, ended for the API, forgotten by the runtime": {
			pod:   reported(testPod(never, "a"), 1),
			state: &pod.State{},
			want: brief{
				Finished: true,
			},
		},
		"on failure, failed for the API, forgotten by the runtime": {
			pod:   reported(testPod(onFailure, "a"), 1),
			state: &pod.State{},
			want:  brief{Sandbox: noSandbox, Start: []string{"a"}},
		},
		"never, ended for the API, forgotten but for the sandbox": {
			pod: reported(testPod(never, "a"), 0), state: ready(), want: brief{Stop: StopCompleted, Boxes: []string{"s0"}},
		},
		"two ready sandboxes": {
			pod: testPod(always, "a"), state: &pod.State{Sandboxes: []pod.Sandbox{
				{ID: "s1", Ready: true, IPs: []string{"10.0.0.3"}}, {ID: "s0", Ready: true, IPs: []string{"10.0.0.2"}},
			}},
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s1", "s0"},
				Sandbox: manySandboxes,
				Start:   []string{"a"},
			},
		},
		"network mode changed": {
			pod: hostNetwork(testPod(always, "a")), state: ready(),
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s0"},
				Sandbox: networkModeChanged,
				Start:   []string{"a"},
			},
		},
		"no address": {
			pod: testPod(always, "a"), state: &pod.State{Sandboxes: []pod.Sandbox{{ID: "s0", Ready: true}}},
			want: brief{Stop: StopSandboxChanged, Boxes: []string{"s0"}, Sandbox: sandboxHasNoIP, Start: []string{"a"}},
		},
		"host network needs no address": {
			pod: hostNetwork(testPod(always, "a")),
			state: &pod.State{
				Sandboxes:  []pod.Sandbox{{ID: "s0", Ready: true, HostNetwork: true}},
				Containers: []pod.Container{ctr("1", "a", running, 0)},
			},
		},

		"init: first": {pod: withInit(testPod(always, "a"), plain("i"), plain("j")), state: ready(), want: brief{
			Start: []string{"i"},
		}},
		"init: new pod": {
			pod:   withInit(testPod(always, "a"), plain("i")),
			state: &pod.State{},
			want:  brief{Sandbox: noSandbox, Start: []string{"i"}},
		},
		"init: runs": {pod: withInit(testPod(always, "a"), plain("i")), state: ready(ctr("1", "i", running, 0))},
		"init: second": {
			pod:   withInit(testPod(always, "a"), plain("i"), plain("j")),
			state: ready(ctr("1", "i", dead, 0)),
			want: brief{
				Start: []string{"j"},
			},
		},
		"init: all done": {
			pod:   withInit(testPod(always, "a"), plain("i")),
			state: ready(ctr("1", "i", dead, 0)),
			want: brief{
				Start: []string{"a"},
			},
		},
		"init: first gone": {
			pod:   withInit(testPod(always, "a"), plain("i"), plain("j")),
			state: ready(ctr("2", "j", dead, 0)),
			want: brief{
				Start: []string{"a"},
			},
		},
		"init: all gone": {pod: withInit(testPod(always, "a"), plain("i")), state: ready(ctr("2", "a", running, 0))},
		"init: failed": {
			pod:   withInit(testPod(always, "a"), plain("i")),
			state: ready(ctr("1", "i", dead, 1)),
			want: brief{
				Start: []string{"i"},
			},
		},
		"init: failed, never": {
			pod:   withInit(testPod(never, "a"), plain("i")),
			state: ready(ctr("1", "i", dead, 1)),
			want:  brief{Stop: StopInitFailed, Boxes: []string{"s0"}},
		},
		"init: of a dead sandbox is run again": {
			pod:   withInit(testPod(always, "a"), plain("i")),
			state: notReady(ctr("1", "i", dead, 0), ctr("2", "a", dead, 137)),
			want: brief{
				Stop:    StopSandboxChanged,
				Boxes:   []string{"s0"},
				Remove:  []string{"1"},
				Sandbox: sandboxNotReady,
				Start:   []string{"i"},
			},
		},
		"init: containers of an old sandbox do not count": {
			pod: withInit(testPod(always, "a"), plain("i")),
			state: &pod.State{
				Sandboxes:  []pod.Sandbox{{ID: "s1", Ready: true, IPs: []string{"10.0.0.3"}}, {ID: "s0"}},
				Containers: []pod.Container{ctr("2", "a", dead, 137)},
			},
			want: brief{Start: []string{"i"}},
		},
		"sidecar: runs, next": {
			pod:   withInit(testPod(always, "a"), sidecar("s"), plain("i")),
			state: ready(ctr("1", "s", running, 0)),
			want:  brief{Start: []string{"i"}},
		},
		"sidecar: is kept alive": {
			pod:   withInit(testPod(always, "a"), sidecar("s")),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", dead, 1)),
			want:  brief{Start: []string{"s"}},
		},
		"sidecar: waits for its startup probe": {
			pod: withInit(testPod(always, "a"), v1.Container{
				Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways), StartupProbe: &v1.Probe{},
			}),
			state: ready(ctr("1", "s", running, 0)),
		},
		"sidecar: ends with the pod": {
			pod:   withInit(testPod(never, "a"), sidecar("s")),
			state: ready(ctr("2", "a", dead, 0), ctr("1", "s", running, 0)),
			want:  brief{Stop: StopCompleted, StopIDs: []string{"1"}, Boxes: []string{"s0"}},
		},
		"sidecars: stop last, last first": {
			pod:   deleted(withInit(testPod(always, "a"), sidecar("s"), sidecar("t"))),
			state: ready(ctr("1", "s", running, 0), ctr("2", "t", running, 0), ctr("3", "a", running, 0)),
			want:  brief{Stop: StopTerminating, StopIDs: []string{"3", "2", "1"}, Boxes: []string{"s0"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decide(Input{
				Pod:         test.pod,
				State:       test.state,
				Now:         t0.Add(time.Hour),
				Terminating: test.terminating,
				Stopped:     test.stopped,
				Liveness:    test.liveness,
				Startup:     test.startup,
				Hash:        test.hash,
				Backoff:     NewBackoff(0),
			})
			if diff := cmp.Diff(test.want, briefly(got)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGrace(t *testing.T) {
	hook := &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}}
	tests := map[string]struct {
		change  func(*v1.Pod, *Input)
		grace   time.Duration
		preStop bool
	}{
		"the pod's own": {func(*v1.Pod, *Input) {}, 30 * time.Second, true},
		"deletion's": {func(p *v1.Pod,
			_ *Input) {
			p.DeletionGracePeriodSeconds = new(int64(7))
		}, 7 * time.Second, true},
		"forced": {func(p *v1.Pod,
			_ *Input) {
			p.DeletionGracePeriodSeconds = new(int64(0))
		}, 2 * time.Second, false},
		"an eviction's": {func(_ *v1.Pod,
			in *Input) {
			in.GraceOverride = new(int64(1))
		}, 2 * time.Second, true},
		"the liveness probe's": {func(p *v1.Pod,
			in *Input) {
			p.DeletionTimestamp = nil
			in.Liveness = map[string]Result{"1": Failure}
		}, 5 * time.Second, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := testPod(v1.RestartPolicyAlways, "a")
			p.DeletionTimestamp = &metav1.Time{Time: t0}
			p.Spec.Containers[0].Lifecycle = hook
			p.Spec.Containers[0].LivenessProbe = &v1.Probe{TerminationGracePeriodSeconds: new(int64(5))}
			in := Input{Pod: p, State: ready(ctr("1", "a", running, 0)), Now: t0}
			test.change(p, &in)
			got := Decide(in)
			kills := got.Kill
			if got.StopPod != nil {
				kills = got.StopPod.Containers
			}
			if len(kills) != 1 || kills[0].Grace != test.grace || kills[0].PreStop != test.preStop {
				t.Errorf("kills %+v, want one with grace %s and preStop %v", kills, test.grace, test.preStop)
			}
		})
	}
}
