package devices

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestWrongAnswers: a plugin answers what no container can have. The pod is rejected or says why it does not start, and
// other pods and the next one that asks for a device run.
func TestWrongAnswers(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	d := s.StartDevicePlugin("device", "a")
	w := s.CreateSteadyPods()
	none := 0
	answer := func(a *deviceplugin.Answer) deviceplugin.Rule {
		return deviceplugin.Rule{Method: deviceplugin.Allocate, Answer: a}
	}
	for name, rule := range map[string]deviceplugin.Rule{
		"no-container": {Method: deviceplugin.Allocate, Containers: &none},
		"relative-mount": answer(&deviceplugin.Answer{
			Mounts: []*pluginapi.Mount{{HostPath: "etc", ContainerPath: "../etc"}},
		}),
		"relative-node": answer(&deviceplugin.Answer{
			Devices: []*pluginapi.DeviceSpec{{HostPath: "dev/null", ContainerPath: "dev/x", Permissions: "rw"}},
		}),
		"permissions": answer(&deviceplugin.Answer{
			Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "all"}},
		}),
		"huge-variable": answer(&deviceplugin.Answer{Env: map[string]string{"HUGE": strings.Repeat("x", 3<<20)}}),
		"no-variable":   answer(&deviceplugin.Answer{Env: map[string]string{"": "x", "A=B": "y"}}),
		"unknown-cdi":   answer(&deviceplugin.Answer{CDI: []string{"vendor.example/device=unknown"}}),
		"no-cdi":        answer(&deviceplugin.Answer{CDI: []string{"no CDI name"}}),
	} {
		d.Follow(rule)
		s.CreatePods(scene.OnNode(d.Pod(name, 1), s.NodeName()))
		s.Wait(scene.Patience, "what becomes of the pod "+name, saysWhy(s, name))
		p := s.Record.View().Pod(s.Namespace, name)
		t.Logf("%s: %s: %s %s", name, scene.Describe(p), p.Status.Reason, p.Status.Message)
		s.DeletePods(name)
		s.Wait(scene.Patience, "the pod's end", s.AreGone(name))
	}
	d.Follow()
	s.CreatePods(scene.OnNode(d.Pod("next", 1), s.NodeName()))
	s.WaitReady(scene.Patience, "next")
	d.Agree("next")
	w.Untouched()
	w.NodeReady()
}

// saysWhy returns a condition: a pod was rejected with a message, or its container waits with one.
func saysWhy(s *scene.Scene, name string) func(record.View) error {
	return func(v record.View) error {
		p := v.Pod(s.Namespace, name)
		if p == nil {
			return errors.New(scene.Describe(p))
		}
		if p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError" && p.Status.Message != "" {
			return nil
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				return fmt.Errorf("container %s runs", c.Name)
			}
			if c.State.Waiting != nil && c.State.Waiting.Message != "" {
				return nil
			}
		}
		return errors.New(scene.Describe(p))
	}
}
