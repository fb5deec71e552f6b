//go:build !bench

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig"
)

// TestKilledWhenTheGracePeriodEnds: what ignores SIGTERM gets SIGKILL in time, and the API shows how it ended.
func TestKilledWhenTheGracePeriodEnds(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	p := stubborn("deaf", 3)
	s.create(p, plain("neighbour"))
	s.ready(patience, "deaf", "neighbour")
	w := s.witness("neighbour")
	uid := s.record.View().Pod(s.ns, "deaf").UID
	begin := time.Now()
	s.remove("deaf")
	s.wait(patience, "the end of what ignores SIGTERM", s.areGone("deaf"))
	took := time.Since(begin)
	t.Logf("a container that ignores SIGTERM was gone %s after the deletion, with a grace period of 3 s", ms(took))
	if took < 3*time.Second {
		t.Errorf("it was gone after %s, within its grace period", took)
	}
	s.endedWith(uid, 137)
	w.untouched()
}

// stubborn is a pod whose container ignores SIGTERM.
func stubborn(name string, grace int64) *corev1.Pod {
	p := plain(name)
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: rig.BusyboxImage, Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"},
	}}
	return p
}

// endedWith judges that the API shows this end of a pod's one container, and nothing else.
func (s *scene) endedWith(uid types.UID, code int32) {
	s.t.Helper()
	var ends []string
	for _, p := range s.record.History(uid) {
		for _, c := range p.Status.ContainerStatuses {
			if e := c.State.Terminated; e != nil {
				ends = append(ends, fmt.Sprintf("%s %d", e.Reason, e.ExitCode))
			}
		}
	}
	if want := fmt.Sprintf("Error %d", code); !slices.Equal(slices.Compact(ends), []string{want}) {
		s.t.Errorf("the API shows the ends %q, want %q", ends, want)
	}
}

// TestDeletedWhileItsImageIsPulled: the registry has stopped answering. The pod goes at once all the same, and others
// neither wait nor suffer; one whose image comes late runs.
func TestDeletedWhileItsImageIsPulled(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	s.create(plain("neighbour"))
	s.ready(patience, "neighbour")
	w := s.witness("neighbour")
	registry := s.program(rig.Registry)
	if err := unix.Kill(registry, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	release := func() { _ = unix.Kill(registry, unix.SIGCONT) }
	t.Cleanup(release)

	// Always pulled, also when another scenario has pulled it.
	pulls := func(name string) *corev1.Pod {
		p := scripted(name, forever)
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		return p
	}
	s.create(pulls("goes"), pulls("forced"), pulls("late"))
	for _, name := range []string{"goes", "forced", "late"} {
		s.wait(patience, "the begin of a pull", s.hasEvent(name, "Pulling"))
	}
	s.create(plain("beside"))
	s.ready(patience, "beside") // the registry is still stopped
	begin := time.Now()
	s.remove("goes")
	s.removeNow("forced")
	s.wait(patience, "the end of a pod whose image is being pulled", s.areGone("goes", "forced")) // the registry is still stopped
	t.Logf("pods whose image was being pulled were gone %s after their deletion", ms(time.Since(begin)))
	release()
	s.ready(patience, "late")
	s.leavesNoContainer("goes", "forced")
	w.untouched()
}

// removeNow deletes a pod with no grace period: its object goes at once.
func (s *scene) removeNow(name string) {
	s.t.Helper()
	if err := s.client.CoreV1().Pods(s.ns).Delete(s.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.t.Fatal(err)
	}
}

func onNode(p *corev1.Pod, node string) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

// program is the pid of a program of the rig.
func (n *node) program(name string) int {
	for _, p := range n.Status(context.Background()) {
		if p.Program == name && p.Running {
			return p.PID
		}
	}
	return 0
}

// leavesNoContainer waits until the runtime has nothing of pods that are gone.
func (s *scene) leavesNoContainer(pods ...string) {
	s.t.Helper()
	await(s.t, patience, "no container of pods that are gone", func() error {
		var errs []error
		for _, pod := range pods {
			all, err := s.containers(pod)
			if err == nil && len(all) > 0 {
				err = fmt.Errorf("pod %s has %d containers", pod, len(all))
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// TestDeletedWhilePodsyncIsDown: deleted with a grace period, and at once so that no object tells of it any more.
func TestDeletedWhilePodsyncIsDown(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	gone := []string{"goes", "forced", "replaced", "deaf"}
	s.create(plain("neighbour"), scripted("goes", forever), scripted("forced", forever), scripted("replaced", forever),
		stubborn("deaf", 3))
	s.ready(patience, append(gone, "neighbour")...)
	w := s.witness("neighbour")
	v := s.record.View()
	var pods []*corev1.Pod
	for _, name := range gone {
		pods = append(pods, v.Pod(s.ns, name))
	}

	// With its supervisor, which would start it again, and it could do much before a test kills it.
	if err := s.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.remove("goes", "deaf")
	s.removeNow("forced")
	s.removeNow("replaced")
	s.wait(patience, "the end of an object", s.areGone("forced", "replaced"))
	s.create(onNode(scripted("replaced", forever), s.NodeName())) // another pod of the same name
	for _, name := range gone {
		if err := s.runsAttempt(name, 0); err != nil {
			t.Errorf("without podsync nothing may end: %v", err)
		}
	}
	if err := s.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.waitHealthy(t, patience)

	s.wait(patience, "the end of pods that were deleted meanwhile", s.areGone("goes", "deaf"))
	s.endedWith(pods[3].UID, 137)
	s.ready(patience, "replaced")
	if now := s.record.View().Pod(s.ns, "replaced"); now.UID == pods[2].UID ||
		containerID(now) == containerID(pods[2]) {
		t.Errorf("the pod of the same name is the one before")
	}
	await(t, patience, "nothing left of pods that were deleted meanwhile", func() error {
		// Of the pod that was replaced its name lives on.
		left, err := s.traces([]*corev1.Pod{pods[0], pods[1], pods[3]})
		if err == nil && len(left) > 0 {
			err = errors.New(strings.Join(left, "\n"))
		}
		return err
	})
	w.untouched()
}
