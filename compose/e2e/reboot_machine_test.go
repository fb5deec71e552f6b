//go:build machine && !bench

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// TestReboot reboots the node's machine with pods of each restart policy, running and done, and compares what became of
// them with what becomes of them under the kubelet.
func TestReboot(t *testing.T) {
	s := newScene(t)
	theirs := s.rebooted(rig.AgentKubelet, func() error {
		m, err := s.Machine()
		if err != nil {
			return err
		}
		return m.Reboot(t.Context())
	})
	ours := s.rebooted(rig.AgentMicrolet, func() error {
		m, err := s.Machine()
		if err != nil {
			return err
		}
		return m.Reboot(t.Context())
	})
	s.sameEnd(theirs, ours)
}

// TestPowerCut is TestReboot without a word to the node before.
func TestPowerCut(t *testing.T) {
	s := newScene(t)
	cut := func() error {
		if err := s.CutPower(t.Context()); err != nil {
			return err
		}
		return s.PowerOn(t.Context())
	}
	theirs := s.rebooted(rig.AgentKubelet, cut)
	ours := s.rebooted(rig.AgentMicrolet, cut)
	s.sameEnd(theirs, ours)
}

func (s *scene) sameEnd(theirs, ours map[string]string) {
	s.t.Helper()
	for name, end := range theirs {
		s.t.Logf("%-20s %s", name, end)
		if ours[name] != end {
			s.t.Errorf("%s: under the kubelet %s; under microlet %s", name, end, ours[name])
		}
	}
	// The positive control: something was started again, and something stayed as it was.
	if !strings.Contains(theirs["always"], "restarts 1") || !strings.HasPrefix(theirs["done-never"], "Succeeded") {
		s.t.Errorf("the reboot was none: %v", theirs)
	}
}

// rebootPods are pods of each restart policy, with the phase in which they come to rest before the reboot.
func rebootPods() (pods []*corev1.Pod, rests map[string]corev1.PodPhase) {
	rests = map[string]corev1.PodPhase{}
	add := func(phase corev1.PodPhase, p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		*p.Spec.TerminationGracePeriodSeconds = 2
		pods, rests[p.Name] = append(pods, p), phase
	}
	for name, policy := range map[string]corev1.RestartPolicy{
		"always": corev1.RestartPolicyAlways, "on-failure": corev1.RestartPolicyOnFailure, "never": corev1.RestartPolicyNever,
	} {
		p := scripted(name, forever)
		p.Spec.RestartPolicy = policy
		add(corev1.PodRunning, p)
	}
	for name, policy := range map[string]corev1.RestartPolicy{"done-on-failure": corev1.RestartPolicyOnFailure, "done-never": corev1.RestartPolicyNever} {
		p := scripted(name, "exit 0")
		p.Spec.RestartPolicy = policy
		add(corev1.PodSucceeded, p)
	}
	failed := scripted("failed-never", "exit 3")
	failed.Spec.RestartPolicy = corev1.RestartPolicyNever
	add(corev1.PodFailed, failed)
	// A file on the node's disk is there again, one in memory is not.
	volumes := scripted("volumes", `ls /disk /memory; touch /disk/x /memory/x; sync; `+forever)
	volumes.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	}
	volumes.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"}}
	add(corev1.PodRunning, volumes)
	sidecar := scripted("sidecar", forever)
	always := corev1.ContainerRestartPolicyAlways
	first, beside := *sidecar.Spec.Containers[0].DeepCopy(), *sidecar.Spec.Containers[0].DeepCopy()
	first.Name, first.Command = "first", []string{"sh", "-c", "exit 0"}
	beside.Name, beside.RestartPolicy = "beside", &always
	sidecar.Spec.InitContainers = []corev1.Container{first, beside}
	add(corev1.PodRunning, sidecar)
	return pods, rests
}

// rebooted creates the pods under an agent, has the machine start again, and tells how each pod ends.
func (s *scene) rebooted(agent rig.Agent, reboot func() error) map[string]string {
	s.t.Helper()
	s.switchTo(s.t, agent)
	pods, rests := rebootPods()
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	s.create(pods...)
	s.wait(patience, "pods at rest before the reboot", func(v record.View) error {
		for name, phase := range rests {
			p := v.Pod(s.ns, name)
			if p == nil || p.Status.Phase != phase || phase == corev1.PodRunning && !record.Ready(p) {
				return fmt.Errorf("pod %s: %s", name, describe(p))
			}
		}
		return nil
	})
	ids := map[string]string{}
	v := s.record.View()
	for _, name := range names {
		for _, c := range v.Pod(s.ns, name).Status.ContainerStatuses {
			ids[name] = c.ContainerID
		}
	}
	begin := time.Now()
	if err := reboot(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%s: the machine is up again after %s", agent, ms(time.Since(begin)))
	if err := s.WaitNodeReady(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	// Whoever is to run again does, and then nothing happens any more.
	s.wait(patience, "pods that run again", func(v record.View) error {
		for _, name := range []string{"always", "on-failure", "volumes", "sidecar"} {
			p := v.Pod(s.ns, name)
			if p == nil || !record.Ready(p) || p.Status.ContainerStatuses[0].ContainerID == ids[name] {
				return fmt.Errorf("pod %s: %s", name, describe(p))
			}
		}
		return nil
	})
	var ends map[string]string
	for still := time.Now(); time.Since(still) < 15*time.Second; time.Sleep(time.Second) {
		if now := s.ends(names); fmt.Sprint(now) != fmt.Sprint(ends) {
			ends, still = now, time.Now()
		}
	}
	s.remove(names...)
	s.wait(patience, "the end of the pods", s.areGone(names...))
	return ends
}

// ends tells in words what the API says of pods, without what differs from one run to the next.
func (s *scene) ends(names []string) map[string]string {
	s.sync()
	v := s.record.View()
	all := map[string]string{}
	for _, name := range names {
		p := v.Pod(s.ns, name)
		if p == nil {
			all[name] = "gone"
			continue
		}
		words := []string{string(p.Status.Phase), p.Status.Reason, fmt.Sprintf("ready %t", record.Ready(p))}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			words = append(words, fmt.Sprintf("%s: restarts %d, %s, before %s", c.Name, c.RestartCount, stateOf(c.State), stateOf(c.LastTerminationState)))
		}
		all[name] = strings.Join(words, "; ")
		if name == "volumes" && len(p.Status.ContainerStatuses) > 0 {
			if text, err := s.log(p, "main", int(p.Status.ContainerStatuses[0].RestartCount)); err == nil {
				all[name] += "; log " + strings.Join(strings.Fields(text), " ")
			}
		}
	}
	return all
}

func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return "waiting for " + s.Waiting.Reason
	case s.Terminated != nil:
		return fmt.Sprintf("ended with %d (%s)", s.Terminated.ExitCode, s.Terminated.Reason)
	}
	return "nothing"
}
