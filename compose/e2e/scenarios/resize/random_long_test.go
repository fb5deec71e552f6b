//go:build long

package resize

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// ofEachKind is how many pods there are of each kind.
	ofEachKind = 3
	// calmTime is how long pods are resized under the kubelet, which nothing kills.
	calmTime = time.Minute
	// longestBackOff is how long a container waits before it starts again, at most.
	longestBackOff = 5 * time.Minute
	// settlePatience is how long the last resizes may take: one may restart a container that has waited all that time.
	settlePatience = longestBackOff + scene.Patience
)

// killTime is how long pods are resized under microlet.
var killTime = flag.Duration("for", 10*time.Minute, "how long TestRandomResizes resizes pods while it kills services")

// TestRandomResizes resizes 30 pods at random: larger, smaller, within what a pod has and beyond what the node has,
// while podsync, the bus and the runtime are killed. In the end the API server, the state files, the runtime and the
// cgroups agree, no container has started again that its policy does not say, and everything is as after the same
// under a kubelet.
func TestRandomResizes(t *testing.T) {
	seed := scene.Seed(t, uint64(time.Now().UnixNano()))
	var theirs, ours map[string]map[string]string
	// The pods of one agent are gone before the other one's come.
	calm := t.Run("kubelet", func(t *testing.T) {
		scene.Shared.SwitchTo(t, rig.AgentKubelet)
		theirs = resizeAtRandom(t, seed, min(calmTime, *killTime), false)
	})
	if !calm || !t.Run("microlet", func(t *testing.T) {
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
		ours = resizeAtRandom(t, seed, *killTime, true)
	}) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		for _, what := range slices.Sorted(maps.Keys(theirs[name])) {
			if is, want := ours[name][what], theirs[name][what]; is != want {
				t.Errorf("pod %s: %s is %q with the kubelet, and %q with microlet", name, what, want, is)
			}
		}
		if is, want := len(ours[name]), len(theirs[name]); is != want {
			t.Errorf("pod %s: %d facts with the kubelet, and %d with microlet", name, want, is)
		}
	}
	if !t.Failed() {
		t.Logf("%d pods are as with the kubelet", len(theirs))
	}
}

// walk resizes pods at random.
type walk struct {
	*scene.Scene
	rand        *rand.Rand
	names       []string
	allocatable resource.Quantity
	// changes counts the resizes of each pod.
	changes map[string]int
	// deaths counts the kills of the runtime: each may have lost that a container has started.
	deaths int
	done   map[string]int
}

// resizeAtRandom returns what the pods have in the end, by name.
func resizeAtRandom(t *testing.T, seed uint64, limit time.Duration, kills bool) map[string]map[string]string {
	t.Helper()
	s := scene.New(t)
	w := &walk{
		Scene: s, rand: rand.New(rand.NewPCG(seed, 3)), changes: map[string]int{}, done: map[string]int{},
		allocatable: s.Record.View().Node().Status.Allocatable[corev1.ResourceCPU],
	}
	w.names = createAll(s, ofEachKind, w.size)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if kills && w.rand.IntN(10) == 0 {
			w.kill()
		} else {
			i := w.rand.IntN(len(w.names))
			w.resize(i, w.rand.IntN(6) == 0)
		}
		time.Sleep(time.Duration(20+w.rand.IntN(300)) * time.Millisecond)
	}
	t.Logf("done in %s: %v", limit, w.done)
	if kills {
		s.WaitHealthy(t, scene.Patience)
		scene.Await(t, settlePatience, "the resources to agree after the kills",
			func() error { return s.AgreeOnResources(w.names...) })
	}
	w.settle(seed)
	v := s.Record.View()
	for i, name := range w.names {
		keepsContainers(s, w.kind(i), v.Pod(s.Namespace, name), w.changes[name]+w.deaths)
	}
	return w.facts()
}

func (w *walk) kind(i int) *kind { return &kinds[i%len(kinds)] }

func (w *walk) size() int64 { return least + w.rand.Int64N(most-least+1) }

// resize changes one pod.
func (w *walk) resize(i int, tooMuch bool) {
	w.T.Helper()
	name, what := w.names[i], "resized"
	change := w.kind(i).resize(w.size)
	if tooMuch {
		within := change
		change = func(spec *corev1.PodSpec) { within(spec); beyond(w.allocatable)(spec) }
		what = "resized beyond the node"
	}
	w.Resize(name, change)
	w.changes[name]++
	w.done[what]++
}

// kill kills a service, or the runtime, which stays away for a while.
func (w *walk) kill() {
	roles := []role.Role{role.Podsync, role.Podsync, role.Bus}
	i := w.rand.IntN(len(roles) + 1)
	if i == len(roles) {
		w.KillRuntime(time.Duration(w.rand.IntN(2000)) * time.Millisecond)
		w.deaths++
		w.done["killed containerd"]++
		return
	}
	if pid := w.PID(roles[i]); pid != 0 {
		_ = w.SignalPIDs(syscall.SIGKILL, pid) // it may have ended by itself
		w.done["killed "+string(roles[i])]++
	}
}

// settle gives the pods sizes that depend on the seed alone. Every third pod then asks for more than the node has left,
// and waits.
func (w *walk) settle(seed uint64) {
	w.T.Helper()
	if w.Scene.Agent() == rig.AgentKubelet {
		w.renew()
	}
	w.rand = rand.New(rand.NewPCG(seed, 4))
	for i := range w.names {
		w.resize(i, false)
	}
	w.Wait(settlePatience, "the last resizes", w.AreResized(w.names...))
	for i, name := range w.names {
		if i%3 == 0 {
			w.Resize(name, beyond(w.allocatable))
		}
	}
	for i, name := range w.names {
		if i%3 == 0 {
			w.Wait(scene.Patience, "a resize that waits", w.IsPending(name, corev1.PodReasonDeferred))
		}
	}
	scene.Await(w.T, scene.Patience, "the resources to agree", func() error { return w.AgreeOnResources(w.names...) })
	if w.Scene.Agent() == rig.AgentMicrolet {
		scene.Await(w.T, scene.Patience, "the API server, the runtime and the disk to agree", w.Agree)
	}
}

// renew gives pods a size that is none of the random ones, so that the next resize changes every container. A kubelet
// may have left the cgroup of such a pod as it was: it sets it only when a container that runs or starts has other
// resources than it was given last. That is not so when another container than the init container that runs is resized
// (see early), or when a container that waits for its start is to have again what it had before.
func (w *walk) renew() {
	w.T.Helper()
	var changed []string
	for i, name := range w.names {
		if k := w.kind(i); k.unready || k.restarts != "" {
			w.Resize(name, k.resize(func() int64 { return most + 1 }))
			w.changes[name]++
			changed = append(changed, name)
		}
	}
	w.Wait(settlePatience, "resizes of all containers", w.AreResized(changed...))
}

// facts are what the API server, the runtime and the cgroups have of each pod, apart from times and counts.
func (w *walk) facts() map[string]map[string]string {
	w.T.Helper()
	all := map[string]map[string]string{}
	v := w.Record.View()
	for _, pod := range w.names {
		p, facts := v.Pod(w.Namespace, pod), map[string]string{}
		for name, status := range resizing.Running(p) {
			facts["the resources of "+name] = resizing.Text(status.Resources)
			facts["what is allocated to "+name] = fmt.Sprint(status.AllocatedResources)
			_, id, _ := strings.Cut(status.ContainerID, "://")
			own, whole, _, err := w.Amounts(id)
			if err != nil {
				w.T.Fatal(err)
			}
			if resizing.OfContainer(p, container(p, name)).Shares == 0 {
				own.Shares = 0 // with the kubelet, they depend on how the container got its limit
			}
			facts["the cgroup of "+name], facts["the cgroup of the pod"] = own.String(), whole.String()
		}
		facts["what is pending"] = resizing.Pending(p)
		if c := resizing.Condition(p, corev1.PodResizePending); c != nil {
			facts["why it waits"], _, _ = strings.Cut(c.Message, ", requested")
		}
		all[pod] = facts
	}
	return all
}

// container returns the container or init container of a name.
func container(p *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
