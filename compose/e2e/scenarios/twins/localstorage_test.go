//go:build long

package twins

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// storagePatience is how long a pod may exceed its limits: the figures of volumes are a minute old, and are looked at
// every ten seconds.
const storagePatience = 4 * time.Minute

// TestLocalStorage has pods exceed each kind of limit of local storage, under the kubelet and under microlet, and
// compares what becomes of them.
func TestLocalStorage(t *testing.T) {
	s := scene.New(t)
	theirs := exceedStorage(t, s, rig.AgentKubelet)
	ours := exceedStorage(t, s, rig.AgentMicrolet)
	if d := cmp.Diff(theirs, ours); d != "" {
		t.Errorf("-kubelet +microlet\n%s", d)
	}
	// The positive control: the kubelet has evicted each for its own limit.
	for name, text := range map[string]string{
		"volume":    `Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". `,
		"pod":       "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
		"container": `Container main exceeded its local ephemeral storage limit "1Mi". `,
	} {
		if got := theirs[name]; got.Reason != "Evicted" || got.Message != text {
			t.Errorf("under the kubelet, pod %s: %s: %s", name, got.Reason, got.Message)
		}
	}
}

// eviction is what an evicted pod shows.
type eviction struct {
	Phase           corev1.PodPhase
	Reason, Message string
	// Containers are how each container ended, Conditions those of the pod, and Events those of its end.
	Containers, Conditions, Events []string
}

// evictionOf reads it.
func evictionOf(s *scene.Scene, v record.View, name string) eviction {
	p := v.Pod(s.Namespace, name)
	e := eviction{Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message}
	for _, c := range p.Status.ContainerStatuses {
		state := c.Name + " runs"
		if end := c.State.Terminated; end != nil {
			state = fmt.Sprintf("%s ended with %d: %s: %s", c.Name, end.ExitCode, end.Reason, end.Message)
		}
		e.Containers = append(e.Containers, state)
	}
	for _, c := range p.Status.Conditions {
		e.Conditions = append(e.Conditions, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	for _, event := range v.Events(s.Namespace, name) {
		if event.InvolvedObject.UID != p.UID { // it is of the pod of that name under the other agent
			continue
		}
		if event.Reason == "Evicted" || event.Reason == "Killing" {
			e.Events = append(e.Events, event.Type+" "+event.Reason+": "+event.Message)
		}
	}
	slices.Sort(e.Conditions)
	slices.Sort(e.Events)
	return e
}

// storagePods are pods that exceed a limit, by their names, and one that does not.
func storagePods() []*corev1.Pod {
	// A container that ends well makes its pod a success, evicted or not.
	const fill = "trap 'exit 3' TERM; dd if=/dev/zero of=%s bs=1M count=4; sync; " + scene.Forever
	limited := func(size string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse(size)}}
	}
	withVolume := func(name, script string, limit *resource.Quantity) *corev1.Pod {
		p := scene.ScriptPod(name, script)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: limit}}})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "scratch", MountPath: "/scratch"})
		return p
	}
	volume := withVolume("volume", fmt.Sprintf(fill, "/scratch/file"), new(resource.MustParse("1Mi")))
	pod := withVolume("pod", fmt.Sprintf(fill, "/scratch/file"), nil)
	pod.Spec.Containers[0].Resources = limited("2Mi")
	container := scene.ScriptPod("container", fmt.Sprintf(fill, "/file"))
	container.Spec.Containers[0].Resources = limited("1Mi")
	container.Spec.Containers = append(container.Spec.Containers, scene.ShellContainer("roomy", scene.Forever))
	container.Spec.Containers[1].Resources = limited("20Mi")
	below := withVolume("below", fmt.Sprintf(fill, "/scratch/file"), new(resource.MustParse("10Mi")))
	below.Spec.Containers[0].Resources = limited("20Mi")
	return []*corev1.Pod{volume, pod, container, below}
}

// exceedStorage runs the pods under an agent until all that exceed a limit are evicted.
func exceedStorage(t *testing.T, s *scene.Scene, agent rig.Agent) map[string]eviction {
	t.Helper()
	scene.Shared.SwitchTo(t, agent)
	s.CreatePods(storagePods()...)
	evicted := []string{"volume", "pod", "container"}
	all := append(slices.Clone(evicted), "below")
	s.WaitReady(scene.Patience, "below")
	s.Wait(storagePatience, "the evictions", func(v record.View) error {
		var waiting []string
		for _, name := range evicted {
			if p := v.Pod(s.Namespace, name); p == nil || !scene.AtRest(p) || p.Status.Reason != "Evicted" {
				waiting = append(waiting, name+": "+scene.Describe(p))
			}
		}
		if len(waiting) > 0 {
			return errors.New(strings.Join(waiting, ", "))
		}
		return nil
	})
	quiet(s, deliveryPause, scene.Patience)
	v := s.Record.View()
	shown := map[string]eviction{}
	for _, name := range all {
		shown[name] = evictionOf(s, v, name)
	}
	s.DeletePods(all...)
	s.Wait(scene.Patience, "the end of the pods", s.AreGone(all...))
	return shown
}
