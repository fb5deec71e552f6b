package manager

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// withInit is a pod that runs what fails again, with an init container that went well and a container that runs.
func withInit() (*v1.Pod, *pod.State) {
	p := testPod("a")
	p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	p.Spec.InitContainers = []v1.Container{{Name: "i", Image: "image-i"}}
	return p, ready(ctr("2", "a", running, 0), ctr("1", "i", dead, 0))
}

// TestWhatEndedForGoodDoesNotKeepTheRestFromTheAPI: a lost sandbox lets init containers run again, which the apiserver
// does not take of a container that has succeeded.
func TestWhatEndedForGoodDoesNotKeepTheRestFromTheAPI(t *testing.T) {
	a := newServer("web")
	p, first := withInit()
	a.change("web", func(q *v1.Pod) { q.Spec = p.Spec })
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		m.Set(a.get("web"), status.Generate(a.get("web"), first, inputs()))
		settle(time.Second)
		if a.get("web").Status.InitContainerStatuses[0].State.Terminated == nil {
			t.Fatalf("status %+v", a.get("web").Status)
		}

		second := &pod.State{
			Sandboxes:  []pod.Sandbox{{ID: "s1", Ready: true, IPs: []string{"10.0.0.3"}}, {ID: "s0"}},
			Containers: []pod.Container{ctr("3", "i", running, 0), ctr("2", "a", dead, 137), ctr("1", "i", dead, 0)},
		}
		in := inputs()
		old, _ := m.Last("uid-web")
		in.Old = &old
		m.Set(a.get("web"), status.Generate(a.get("web"), second, in))
		settle(time.Second)
		s := a.get("web").Status
		if s.PodIP != "10.0.0.3" || s.Phase != v1.PodPending {
			t.Errorf("the second sandbox was not reported: address %s, phase %s, %v", s.PodIP, s.Phase, a.calls)
		}
		if got := s.InitContainerStatuses[0]; got.State.Terminated == nil || got.ContainerID != "containerd://1" {
			t.Errorf("the init container: %+v", got)
		}
		if reported, _ := m.Last("uid-web"); reported.InitContainerStatuses[0].State.Running == nil {
			t.Errorf("others on the node get the API's words: %+v", reported.InitContainerStatuses[0])
		}

		// Nor does it keep a pod from being deleted.
		gone := a.change("web", func(q *v1.Pod) { q.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		m.UpdateFromAPI(gone)
		m.Terminated(gone, status.Generate(gone, second, in))
		settle(time.Second)
		if a.get("web") != nil {
			t.Errorf("the pod is still there after %v", a.calls)
		}
	})
}

// TestEndsThatStay: what the API has refused to take back, of all kinds of containers, and what it takes.
func TestEndsThatStay(t *testing.T) {
	ended := func(name string, code int32) v1.ContainerStatus {
		return v1.ContainerStatus{
			Name:        name,
			ContainerID: "old",
			State:       v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}},
		}
	}
	runs := func(name string) v1.ContainerStatus {
		return v1.ContainerStatus{
			Name:        name,
			ContainerID: "new",
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		}
	}
	always := v1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		policy v1.RestartPolicy
		change func(p *v1.Pod)
		code   int32
		stays  bool
	}{
		"always":               {policy: v1.RestartPolicyAlways},
		"always, after a fail": {policy: v1.RestartPolicyAlways, code: 1},
		"on failure":           {policy: v1.RestartPolicyOnFailure, stays: true},
		"on failure, failed":   {policy: v1.RestartPolicyOnFailure, code: 1},
		"never":                {policy: v1.RestartPolicyNever, stays: true},
		"never, failed":        {policy: v1.RestartPolicyNever, code: 137, stays: true},
		"its own policy": {policy: v1.RestartPolicyNever, change: func(p *v1.Pod) {
			p.Spec.Containers[0].RestartPolicy, p.Spec.InitContainers[0].RestartPolicy = &always, &always
		}},
		"all may restart": {policy: v1.RestartPolicyNever, change: func(p *v1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
				Action: v1.ContainerRestartRuleActionRestartAllContainers,
			}}
		}},
		"not in the pod": {policy: v1.RestartPolicyAlways, stays: true, change: func(p *v1.Pod) {
			p.Spec.Containers[0].Name, p.Spec.InitContainers[0].Name = "other", "others"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := withInit()
			p.Spec.RestartPolicy = c.policy
			if c.change != nil {
				c.change(p)
			}
			p.Status.ContainerStatuses = []v1.ContainerStatus{ended("a", c.code), runs("b")}
			p.Status.InitContainerStatuses = []v1.ContainerStatus{ended("i", c.code)}
			p.Status.EphemeralContainerStatuses = []v1.ContainerStatus{ended("e", c.code)}
			want := &v1.PodStatus{
				ContainerStatuses:          []v1.ContainerStatus{runs("a"), runs("b")},
				InitContainerStatuses:      []v1.ContainerStatus{runs("i")},
				EphemeralContainerStatuses: []v1.ContainerStatus{runs("e"), runs("new")},
			}
			got := merged(p, want)
			for _, s := range []v1.ContainerStatus{got.ContainerStatuses[0], got.InitContainerStatuses[0]} {
				if stays := s.ContainerID == "old"; stays != c.stays || stays != (s.State.Terminated != nil) {
					t.Errorf("%s: %+v", s.Name, s)
				}
			}
			if got.ContainerStatuses[1].ContainerID != "new" || got.EphemeralContainerStatuses[1].ContainerID != "new" {
				t.Errorf("others suffer: %+v", got)
			}
			if s := got.EphemeralContainerStatuses[0]; (s.ContainerID == "old") != (name != "all may restart") {
				t.Errorf("ephemeral: %+v", s)
			}
			if want.ContainerStatuses[0].ContainerID != "new" {
				t.Error("the status that was given is changed")
			}
		})
	}
}
