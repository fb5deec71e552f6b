package services

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestChaos creates, changes and deletes random pods while it kills services and the runtime. When it
// has stopped, the API server, the runtime and the disk agree, and what is deleted leaves nothing.
func TestChaos(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	n := scene.Seed(t, chaosSeed())
	c := &chaos{
		Scene: s, rand: rand.New(rand.NewPCG(n, 2)), done: map[string]int{},
		pods: s.RandomPods(podgen.Options{Seed: n, Traits: 4}),
	}
	mark := s.Record.Mark()
	for end := time.Now().Add(chaosTime); time.Now().Before(end); {
		c.act()
		time.Sleep(time.Duration(50+c.rand.IntN(300)) * time.Millisecond)
	}
	t.Logf("done in %s: %v", chaosTime, c.done)
	s.WaitHealthy(t, scene.Patience)
	if err := s.WaitErr(2*scene.Patience, func(v record.View) error {
		for _, p := range v.Pods(s.Namespace) {
			if p.DeletionTimestamp != nil || !scene.AtRest(p) {
				return fmt.Errorf("pod %s (deleted %t): %s", p.Name, p.DeletionTimestamp != nil, scene.Describe(p))
			}
		}
		return nil
	}); err != nil {
		t.Fatalf("the pods do not come to rest: %v", err)
	}
	scene.Await(t, scene.Patience, "the API server, the runtime and the disk to agree", c.Agree)
	living := s.Record.View().Pods(s.Namespace)
	var names []string
	for _, p := range living {
		names = append(names, p.Name)
	}
	s.DeletePods(names...)
	s.Wait(2*scene.Patience, "the pods' end", s.AreGone(names...))
	s.LeavesNothing(everyPod(s.Namespace, s.Record.Since(mark)))
}

type chaos struct {
	*scene.Scene
	rand *rand.Rand
	pods *podgen.Generator
	done map[string]int
	made int
}

// act does one thing.
func (c *chaos) act() {
	present := slices.DeleteFunc(c.Record.View().Pods(c.Namespace),
		func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(present, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	what := c.rand.IntN(20)
	switch {
	case what < 8 && len(present) < chaosPods || len(present) == 0:
		c.made++
		p, _ := c.pods.Pod(fmt.Sprintf("chaos-%d", c.made))
		c.CreatePods(p)
		c.done["created"]++
	case what < 13:
		p := present[c.rand.IntN(len(present))]
		grace := []*int64{nil, new(int64(0)), new(int64(1))}[c.rand.IntN(3)]
		err := c.API.CoreV1().Pods(c.Namespace).Delete(c.T.Context(), p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: grace})
		if err != nil && !apierrors.IsNotFound(err) {
			c.T.Fatal(err)
		}
		c.done["deleted"]++
	case what < 17:
		c.change(present[c.rand.IntN(len(present))])
	default:
		c.kill()
	}
}

// change changes what may be changed of a pod.
func (c *chaos) change(p *corev1.Pod) {
	patches := []string{
		fmt.Sprintf(`{"metadata":{"annotations":{"note":"changed %d"},"labels":{"changed":"%d"}}}`, c.rand.IntN(100),
			c.rand.IntN(100)),
		`{"spec":{"activeDeadlineSeconds":1}}`,
		fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, otherBusybox),
	}
	i := c.rand.IntN(len(patches))
	if i == 2 && podgen.Ends(p) {
		i = 0 // another image restarts it: whether it still ends depends on the image
	}
	_, err := c.API.CoreV1().Pods(c.Namespace).Patch(c.T.Context(), p.Name, types.StrategicMergePatchType,
		[]byte(patches[i]), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.T.Fatalf("change pod %s with %s: %v", p.Name, patches[i], err)
	}
	c.done[[]string{"labelled", "given a deadline", "given another image"}[i]]++
}

// otherBusybox is another name of the image that the pods run.
const otherBusybox = "registry.k8s.io/e2e-test-images/busybox:1.29-4"

// kill kills a service, or the runtime, which stays away for a while.
func (c *chaos) kill() {
	roles := []role.Role{role.Podsync, role.PLEG, role.Bus}
	i := c.rand.IntN(len(roles) + 1)
	if i < len(roles) {
		if pid := c.PID(roles[i]); pid != 0 {
			_ = c.Node.SignalPIDs(syscall.SIGKILL, pid) // it may have ended by itself
			c.done["killed "+string(roles[i])]++
		}
		return
	}
	c.KillRuntime(time.Duration(c.rand.IntN(2000)) * time.Millisecond)
	c.done["killed containerd"]++
}

// everyPod returns the last version of every pod that was seen.
func everyPod(namespace string, entries []record.Entry) []*corev1.Pod {
	last := map[types.UID]*corev1.Pod{}
	for _, e := range entries {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Namespace == namespace {
			if before := last[p.UID]; before != nil && p.Status.PodIP == "" {
				p = p.DeepCopy()
				p.Status.PodIP = before.Status.PodIP
			}
			last[p.UID] = p
		}
	}
	var pods []*corev1.Pod
	for _, p := range last {
		pods = append(pods, p)
	}
	return pods
}
