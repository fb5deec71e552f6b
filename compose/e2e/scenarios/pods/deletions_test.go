package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestKilledWhenTheGracePeriodEnds: what ignores SIGTERM gets SIGKILL in time, and the API shows how it ended.
func TestKilledWhenTheGracePeriodEnds(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	p := stubborn("deaf", 3)
	s.CreatePods(p, scene.PausePod("neighbour"))
	s.WaitReady(scene.Patience, "deaf", "neighbour")
	w := s.Witness("neighbour")
	uid := s.Record.View().Pod(s.Namespace, "deaf").UID
	begin := time.Now()
	s.DeletePods("deaf")
	s.Wait(scene.Patience, "the end of what ignores SIGTERM", s.AreGone("deaf"))
	took := time.Since(begin)
	t.Logf("a container that ignores SIGTERM was gone %s after the deletion, with a grace period of 3 s",
		scene.Milliseconds(took))
	if took < 3*time.Second {
		t.Errorf("it was gone after %s, within its grace period", took)
	}
	endedWith(s, uid, 137)
	w.Untouched()
}

// stubborn is a pod whose container ignores SIGTERM.
func stubborn(name string, grace int64) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: rig.BusyboxImage, Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"},
	}}
	return p
}

// endedWith judges that the API shows this end of a pod's one container, and nothing else.
func endedWith(s *scene.Scene, uid types.UID, code int32) {
	s.T.Helper()
	var ends []string
	for _, p := range s.Record.History(uid) {
		for _, c := range p.Status.ContainerStatuses {
			if e := c.State.Terminated; e != nil {
				ends = append(ends, fmt.Sprintf("%s %d", e.Reason, e.ExitCode))
			}
		}
	}
	if want := fmt.Sprintf("Error %d", code); !slices.Equal(slices.Compact(ends), []string{want}) {
		s.T.Errorf("the API shows the ends %q, want %q", ends, want)
	}
}

// TestDeletedWhileItsImageIsPulled: the registry has stopped answering. The pod still goes at once, and other pods
// neither wait nor fail. A pod with a late image runs.
func TestDeletedWhileItsImageIsPulled(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	s.CreatePods(scene.PausePod("neighbour"))
	s.WaitReady(scene.Patience, "neighbour")
	w := s.Witness("neighbour")
	registry := s.ProgramPID(rig.Registry)
	if err := unix.Kill(registry, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	release := func() { _ = unix.Kill(registry, unix.SIGCONT) }
	t.Cleanup(release)

	// Always pulled, also when another scenario has pulled it.
	pulls := func(name string) *corev1.Pod {
		p := scene.ScriptPod(name, scene.Forever)
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		return p
	}
	s.CreatePods(pulls("goes"), pulls("forced"), pulls("late"))
	for _, name := range []string{"goes", "forced", "late"} {
		s.Wait(scene.Patience, "the begin of a pull", s.HasEvent(name, "Pulling"))
	}
	s.CreatePods(scene.PausePod("beside"))
	s.WaitReady(scene.Patience, "beside") // the registry is still stopped
	begin := time.Now()
	s.DeletePods("goes")
	removeNow(s, "forced")
	// the registry is still stopped
	s.Wait(scene.Patience, "the end of a pod whose image is being pulled", s.AreGone("goes", "forced"))
	t.Logf("pods whose image was being pulled were gone %s after their deletion", scene.Milliseconds(time.Since(begin)))
	release()
	s.WaitReady(scene.Patience, "late")
	s.LeavesNoContainer("goes", "forced")
	w.Untouched()
}

// removeNow deletes a pod with no grace period: its object goes at once.
func removeNow(s *scene.Scene, name string) {
	s.T.Helper()
	if err := s.API.CoreV1().Pods(s.Namespace).Delete(s.T.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.T.Fatal(err)
	}
}

// TestDeletedWhilePodsyncIsDown: deleted with a grace period, and at once so that no object reports it any more.
func TestDeletedWhilePodsyncIsDown(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	gone := []string{"goes", "forced", "replaced", "deaf"}
	s.CreatePods(scene.PausePod("neighbour"), scene.ScriptPod("goes", scene.Forever),
		scene.ScriptPod("forced", scene.Forever), scene.ScriptPod("replaced", scene.Forever),
		stubborn("deaf", 3))
	s.WaitReady(scene.Patience, append(gone, "neighbour")...)
	w := s.Witness("neighbour")
	v := s.Record.View()
	var pods []*corev1.Pod
	for _, name := range gone {
		pods = append(pods, v.Pod(s.Namespace, name))
	}

	// With its supervisor, which would start it again, and it could do much before a test kills it.
	if err := s.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.DeletePods("goes", "deaf")
	removeNow(s, "forced")
	removeNow(s, "replaced")
	s.Wait(scene.Patience, "the end of an object", s.AreGone("forced", "replaced"))
	s.CreatePods(scene.OnNode(scene.ScriptPod("replaced", scene.Forever), s.NodeName())) // another pod of the same name
	for _, name := range gone {
		if err := s.RunsAttempt(name, 0); err != nil {
			t.Errorf("without podsync nothing may end: %v", err)
		}
	}
	if err := s.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitHealthy(t, scene.Patience)

	s.Wait(scene.Patience, "the end of pods that were deleted meanwhile", s.AreGone("goes", "deaf"))
	endedWith(s, pods[3].UID, 137)
	s.WaitReady(scene.Patience, "replaced")
	if now := s.Record.View().Pod(s.Namespace, "replaced"); now.UID == pods[2].UID ||
		scene.ContainerID(now) == scene.ContainerID(pods[2]) {
		t.Errorf("the pod of the same name is the one before")
	}
	scene.Await(t, scene.Patience, "nothing left of pods that were deleted meanwhile", func() error {
		// Of the pod that was replaced its name lives on.
		left, err := s.Traces([]*corev1.Pod{pods[0], pods[1], pods[3]})
		if err == nil && len(left) > 0 {
			err = errors.New(strings.Join(left, "\n"))
		}
		return err
	})
	w.Untouched()
}
