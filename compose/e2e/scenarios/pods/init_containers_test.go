package pods

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestAnInitContainerRunsAgain: its pod's sandbox is lost. The API does not take the end of a container back that has
// succeeded and may not run again; that must not keep the rest of the status from it.
func TestAnInitContainerRunsAgain(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	p := scene.ScriptPod("again", scene.Forever)
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
	// the second time it has no end
	first := scene.ShellContainer("first", "test -e /v/ran || exec touch /v/ran; "+scene.Forever)
	first.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	p.Spec.InitContainers = []corev1.Container{first}
	s.CreatePods(p)
	s.WaitReady(scene.Patience, "again")
	was := s.Record.View().Pod(s.Namespace, "again")

	all, err := s.Containers("again")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d containers: %v", len(all), err)
	}
	// podsync stops the sandbox too as soon as it sees its containers end. The network plugin fails one of two
	// deletions at once with "no such device"; the next one passes.
	scene.Await(t, scene.Patience, "the end of the first sandbox", func() error {
		return s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: all[0].GetPodSandboxId()})
			return err
		})
	})
	s.Wait(scene.Patience, "the status of the second sandbox", func(v record.View) error {
		now := v.Pod(s.Namespace, "again")
		if now == nil {
			t.Fatal("it is gone")
		}
		if now.Status.PodIP == was.Status.PodIP || record.Ready(now) {
			return fmt.Errorf("its address is %s: %s", now.Status.PodIP, scene.Describe(now))
		}
		if c := now.Status.InitContainerStatuses[0]; c.State.Terminated == nil {
			t.Errorf("the API took an end back: %+v", c.State)
		}
		return nil
	})
	s.DeletePods("again")
	s.Wait(scene.Patience, "its end", s.AreGone("again"))
	log, err := os.ReadFile(s.Log(rig.AgentProgram))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, string(was.UID)) && strings.Contains(line, "may not be transitioned") {
			t.Errorf("the API server refused a status: %s", line)
		}
	}
}
