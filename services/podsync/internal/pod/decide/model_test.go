package decide

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// model is a runtime that carries out actions at once and without fail, and a pod to which
// things happen.
type model struct {
	t       *testing.T
	pod     *v1.Pod
	state   *pod.State
	backoff *Backoff
	now     time.Time
	ids     int
	hash    uint64
	stopped map[string]bool // sandboxes whose stop was carried out
	over    bool            // nothing may start any more
	// passed holds the init containers that were through in a sandbox, by "sandbox/name": their
	// remains may be gone by the time it matters.
	passed map[string]bool
	// liveness and startup are what probes said, by container id.
	liveness, startup map[string]Result
	keep              int // dead instances that stay
	// lenient: the story begins in the middle, so what came before is not known.
	lenient bool
}

func hashOf(m *model) func(*v1.Container) uint64 { return func(*v1.Container) uint64 { return m.hash } }

func (m *model) input() Input {
	return Input{
		Pod: m.pod, State: m.state, Now: m.now, Backoff: m.backoff, Hash: hashOf(m),
		Liveness: m.liveness, Startup: m.startup, KeepDead: m.keep, Stopped: m.stopped,
	}
}

func (m *model) container(id string) *pod.Container {
	for i := range m.state.Containers {
		if m.state.Containers[i].ID == id {
			return &m.state.Containers[i]
		}
	}
	return nil
}

func (m *model) exit(c *pod.Container, code int32) {
	c.State, c.ExitCode, c.Finished = dead, code, m.now
	if code == 0 {
		m.passed[c.SandboxID+"/"+c.Name] = true
	}
}

func (m *model) stop(kills []Kill) {
	for _, k := range kills {
		c := m.container(k.ID)
		if c == nil {
			m.t.Fatalf("a container %s is to be stopped that does not exist", k.ID)
		}
		if c.State == dead || c.State == created {
			m.t.Fatalf("container %s is to be stopped, but it does not run", k.ID)
		}
		m.exit(c, 137)
	}
}

func (m *model) apply(a Actions) {
	t := m.t
	if a.StopPod != nil {
		m.stop(a.StopPod.Containers)
		for i := range m.state.Sandboxes {
			if slices.Contains(a.StopPod.Sandboxes, m.state.Sandboxes[i].ID) {
				m.state.Sandboxes[i].Ready = false
				m.stopped[m.state.Sandboxes[i].ID] = true
			}
		}
	}
	m.stop(a.Kill)
	for _, id := range a.Remove {
		if c := m.container(id); c == nil || MayRun(c) {
			t.Fatalf("%s is to be removed, but it is %+v", id, c)
		}
		m.state.Containers = slices.DeleteFunc(m.state.Containers, func(c pod.Container) bool { return c.ID == id })
	}
	for _, id := range a.Reset {
		if c := m.container(id); c == nil || MayRun(c) || podutil.IsEphemeral(&m.pod.Spec, c.Name) {
			t.Fatalf("%s is to be reset, but it is %+v", id, c)
		}
		m.state.Containers = slices.DeleteFunc(m.state.Containers, func(c pod.Container) bool { return c.ID == id })
	}
	sandbox := a.SandboxID
	if a.Sandbox != nil {
		m.ids++
		sandbox = "s" + strconv.Itoa(m.ids)
		m.state.Sandboxes = slices.Insert(m.state.Sandboxes, 0, pod.Sandbox{
			ID:          sandbox,
			Ready:       true,
			IPs:         []string{"10.0.0.2"},
			Attempt:     a.Sandbox.Attempt,
			HostNetwork: m.pod.Spec.HostNetwork,
		})
	}
	for _, s := range a.Start {
		m.start(s, sandbox)
	}
}

func (m *model) start(s Start, sandbox string) {
	t := m.t
	if m.over {
		t.Fatalf("%s is started although the pod ends", s.Name)
	}
	newest := m.state.Latest(s.Name)
	for i := range m.state.Containers {
		if c := &m.state.Containers[i]; c.Name == s.Name && MayRun(c) {
			t.Fatalf("%s is started although %s may run", s.Name, c.ID)
		}
	}
	if newest != nil && s.RestartCount <= newest.RestartCount {
		t.Fatalf("restart count %d of %s after %d", s.RestartCount, s.Name, newest.RestartCount)
	}
	if s.Ephemeral && (newest != nil && newest.State != created || m.startRecorded(s.Name)) {
		t.Fatalf("ephemeral container %s is started a second time", s.Name)
	}
	if !s.Init && !s.Ephemeral {
		m.mustBeInitialized(s.Name, sandbox)
	}
	if podutil.IsSidecar(s.Spec) && s.Spec.StartupProbe == nil {
		m.passed[sandbox+"/"+s.Name] = true
	}
	m.backoff.Started(s, m.now)
	m.ids++
	m.state.Containers = slices.Insert(m.state.Containers, 0, pod.Container{
		ID: "c" + strconv.Itoa(m.ids), Name: s.Name, SandboxID: sandbox, State: running,
		Created: m.now, Started: m.now, RestartCount: s.RestartCount, Hash: m.hash,
	})
}

// mustBeInitialized fails if a regular container starts before the init containers of its
// sandbox are through.
func (m *model) mustBeInitialized(name, sandbox string) {
	if m.lenient {
		return
	}
	for _, c := range m.state.Containers {
		if c.SandboxID == sandbox && !podutil.IsInit(&m.pod.Spec, c.Name) && !podutil.IsEphemeral(&m.pod.Spec, c.Name) {
			return // it was before
		}
	}
	for i := range m.pod.Spec.InitContainers {
		spec := &m.pod.Spec.InitContainers[i]
		if !m.passed[sandbox+"/"+spec.Name] {
			m.t.Fatalf("%s starts before init container %s is through", name, spec.Name)
		}
	}
}

// settle decides and acts until nothing is left to do, and checks that it comes to that.
func (m *model) settle() {
	t := m.t
	before := m.pod.DeepCopy()
	for range 30 {
		a := Decide(m.input())
		if !reflect.DeepEqual(a, Decide(m.input())) {
			t.Fatal("the same input gives different actions")
		}
		if !reflect.DeepEqual(before, m.pod) {
			t.Fatal("deciding changed the pod")
		}
		acts := a.StopPod != nil || a.Sandbox != nil || len(a.Kill)+len(a.Start)+len(a.Remove)+len(a.Reset) > 0
		left := func(s pod.Sandbox) bool { return !m.stopped[s.ID] }
		if a.Finished && (acts || m.state.AnyRunning() || slices.ContainsFunc(m.state.Sandboxes, left)) {
			t.Fatalf("finished, but not at rest: %+v", a)
		}
		switch {
		case acts:
			m.apply(a)
		case len(a.Wait) > 0:
			if !a.Wake.After(m.now) {
				t.Fatalf("waits for the past: %s, now %s", a.Wake, m.now)
			}
			m.now = a.Wake
		default:
			m.atRest(a)
			m.recordStarted()
			return
		}
	}
	t.Fatalf("no rest after 30 rounds: %+v", briefly(Decide(m.input())))
}

// atRest checks that a pod at rest is what was asked for.
func (m *model) atRest(a Actions) {
	if m.over && !a.Finished {
		m.t.Fatal("a pod that ends comes to rest without being finished")
	}
	if a.Finished || m.over {
		return
	}
	kept, alive := map[string]int{}, map[string]bool{}
	for i := range m.state.Containers {
		if c := &m.state.Containers[i]; c.Running() {
			if alive[c.Name] {
				m.t.Fatalf("two instances of %s run", c.Name)
			}
			alive[c.Name] = true
		}
		if c := &m.state.Containers[i]; exited(c) || c.State == created && c != m.state.Latest(c.Name) {
			if kept[c.Name]++; kept[c.Name] > m.keep {
				m.t.Fatalf("more than %d dead instances of %s stay", m.keep, c.Name)
			}
		}
	}
	for i := range m.pod.Spec.EphemeralContainers {
		if name := m.pod.Spec.EphemeralContainers[i].Name; m.state.Latest(name) == nil && !m.startRecorded(name) {
			m.t.Fatalf("ephemeral container %s was never started", name)
		}
	}
	for i := range m.pod.Spec.Containers {
		spec := &m.pod.Spec.Containers[i]
		newest := m.state.Latest(spec.Name)
		if newest == nil || newest.SandboxID != m.state.Sandboxes[0].ID {
			continue // initialization may not be through; a run-once container may be of an older sandbox
		}
		if !newest.Running() && WantsStart(m.pod, &m.pod.Status, spec, newest) {
			m.t.Fatalf("%s neither runs nor is it started: %+v", spec.Name, newest)
		}
	}
}

// recordStarted puts into the pod's status what decides later about containers whose remains are gone.
func (m *model) recordStarted() {
	m.pod.Status.EphemeralContainerStatuses = nil
	for i := range m.pod.Spec.EphemeralContainers {
		s := v1.ContainerStatus{Name: m.pod.Spec.EphemeralContainers[i].Name}
		s.State.Running = &v1.ContainerStateRunning{} // that it was started is all that counts
		m.pod.Status.EphemeralContainerStatuses = append(m.pod.Status.EphemeralContainerStatuses, s)
	}
}

func (m *model) startRecorded(ephemeral string) bool {
	return slices.ContainsFunc(m.pod.Status.EphemeralContainerStatuses,
		func(s v1.ContainerStatus) bool { return s.Name == ephemeral })
}

// happen lets one thing happen to the pod.
func (m *model) happen(what, which byte) {
	m.now = m.now.Add(time.Duration(which) * time.Second)
	var c *pod.Container
	if n := len(m.state.Containers); n > 0 {
		c = &m.state.Containers[int(which)%n]
	}
	switch what % 16 {
	case 0, 1, 2:
		if c != nil && c.Running() {
			m.exit(c, 0)
		}
	case 3, 4:
		if c != nil && c.Running() {
			m.exit(c, int32(which%3))
		}
	case 5:
		if len(m.state.Sandboxes) > 0 {
			m.state.Sandboxes[0].Ready = false
		}
	case 6:
		m.hash++
	case 7:
		if c != nil && c.Running() {
			c.State = unknown
		}
	case 8:
		if c != nil && c == m.state.Latest(c.Name) && c.Running() && !podutil.IsEphemeral(&m.pod.Spec, c.Name) {
			c.State = created
		}
	case 9:
		if c != nil && !MayRun(c) {
			m.state.Containers = slices.Delete(m.state.Containers, int(which)%len(m.state.Containers),
				int(which)%len(m.state.Containers)+1)
		}
	case 10:
		if which%4 == 0 {
			m.pod.DeletionTimestamp = &metav1.Time{Time: m.now}
			m.over = true
		}
	case 11:
		m.backoff = NewBackoff(0) // podsync was restarted
		m.backoff.Adopt(m.state)
		m.stopped = map[string]bool{}
	case 12:
		if c != nil {
			m.liveness[c.ID] = Failure
		}
	case 13:
		if c != nil {
			m.startup[c.ID] = Failure
		}
	case 14:
		for i := range m.state.Containers {
			if c := &m.state.Containers[i]; c.Running() {
				m.startup[c.ID], m.liveness[c.ID] = Success, Success
				m.passed[c.SandboxID+"/"+c.Name] = m.passed[c.SandboxID+"/"+c.Name] ||
					podutil.IsInit(&m.pod.Spec, c.Name) && podutil.IsSidecar(podutil.Container(&m.pod.Spec, c.Name))
			}
		}
	case 15:
		if n := len(m.pod.Spec.EphemeralContainers); n < 3 && !m.over {
			m.pod.Spec.EphemeralContainers = append(m.pod.Spec.EphemeralContainers,
				v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e" +
					strconv.Itoa(n)}})
		}
	}
}

func newModel(t *testing.T, shape byte) *model {
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	p := testPod(policies[int(shape)%3], "a", "b")
	probed := sidecar("t")
	probed.StartupProbe = &v1.Probe{}
	switch shape / 3 % 4 {
	case 1:
		withInit(p, plain("i"), plain("j"))
	case 2:
		withInit(p, sidecar("s"), plain("i"))
	case 3:
		withInit(p, plain("i"), sidecar("s"), probed)
	}
	switch shape / 12 % 4 {
	case 1:
		podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestart, 1)
	case 2:
		podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 1)
	}
	return &model{
		t:        t,
		pod:      p,
		state:    &pod.State{},
		backoff:  NewBackoff(0),
		now:      t0,
		passed:   map[string]bool{},
		stopped:  map[string]bool{},
		liveness: map[string]Result{},
		startup:  map[string]Result{},
		keep:     1 + int(shape)/48%2,
	}
}

// end deletes the pod, of which nothing may run in the end.
func (m *model) end() {
	m.t.Helper()
	m.pod.DeletionTimestamp = &metav1.Time{Time: m.now}
	m.over = true
	m.settle()
	if m.state.AnyRunning() {
		m.t.Fatal("something runs after the end")
	}
}

func story(t *testing.T, script []byte) {
	if len(script) == 0 {
		return
	}
	m := newModel(t, script[0])
	m.settle()
	for i := 1; i+1 < len(script) && i < 200; i += 2 {
		m.happen(script[i], script[i+1])
		m.settle()
	}
	m.end()
}

func TestStories(t *testing.T) {
	for seed := range uint64(1000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			script := make([]byte, 41)
			for i := range script {
				script[i] = byte(r.UintN(256))
			}
			story(t, script)
		})
	}
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte{0, 0, 1, 5, 2})
	f.Add([]byte{11, 5, 0, 7, 3, 8, 1})
	f.Fuzz(story)
}

// middle is a pod that is found in any state whatever, as after a takeover.
func middle(t *testing.T, script []byte) {
	if len(script) < 3 {
		return
	}
	m := newModel(t, script[0])
	m.lenient = true
	for i := range int(script[1]) % 3 {
		m.state.Sandboxes = append(m.state.Sandboxes, pod.Sandbox{
			ID:      "found" + strconv.Itoa(i),
			Ready:   script[1]>>(2+i)&1 == 1,
			IPs:     []string{"10.0.0.9"},
			Attempt: uint32(5 - i),
		})
	}
	names := []string{"a", "b", "i", "j", "s", "t", "stranger"}
	for i, b := range script[2:min(len(script), 12)] {
		name := names[int(b)%len(names)]
		c := pod.Container{
			ID:           "was" + strconv.Itoa(i),
			Name:         name,
			SandboxID:    "found" + strconv.Itoa(int(b>>3)%3),
			RestartCount: int32(20 - i),
			Created:      m.now,
			Started:      m.now,
			Finished:     m.now,
			ExitCode:     int32(b >> 6),
			Hash:         uint64(b >> 7),
		}
		c.State = dead
		// Nothing runs in a sandbox but the newest: a sandbox is replaced only when all has been stopped.
		if c.SandboxID == "found0" || len(m.state.Sandboxes) == 0 {
			c.State = []runtimeapi.ContainerState{created, running, dead, unknown}[b>>4&3]
			if m.state.Latest(name) != nil && c.State != running {
				c.State = dead
			}
		}
		m.state.Containers = append(m.state.Containers, c)
	}
	m.settle()
	m.end()
}

func TestAnyMiddleComesToRest(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		script := make([]byte, 3+r.IntN(10))
		for i := range script {
			script[i] = byte(r.UintN(256))
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { middle(t, script) })
	}
}

func FuzzMiddle(f *testing.F) {
	f.Add([]byte{0, 0xff, 5, 2})
	f.Add([]byte{20, 7, 0, 7, 3, 8, 1})
	f.Fuzz(middle)
}
