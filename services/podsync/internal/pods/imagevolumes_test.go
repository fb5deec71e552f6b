package pods

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// withImageVolume has container c of a test pod mount an image.
func withImageVolume(p *v1.Pod, reference string) *v1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{
		Image: &v1.ImageVolumeSource{Reference: reference},
	}})
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "image", MountPath: "/i"}}
	return p
}

// TestAnImageVolumeIsPulledOnce for all containers that start at one time, and again for one that restarts.
func TestAnImageVolumeIsPulledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{Lifetime: 5 * time.Second, ExitCode: 1})
		defer n.run()()
		p := withImageVolume(testPod("a"), "files")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{
			Name: "d", Image: "busybox", VolumeMounts: p.Spec.Containers[0].VolumeMounts,
		})
		n.apply(p)
		if got := n.ensuredVolumes.Load(); got != 1 {
			t.Errorf("it was asked for %d times", got)
		}
		for _, s := range n.status("a").ContainerStatuses {
			if s.State.Running == nil {
				t.Fatalf("%s: %+v", s.Name, s.State)
			}
		}
		for _, call := range n.cri.Calls("CreateContainer") {
			if got := imageOf(call); got != "id of files" {
				t.Errorf("mounted is %q", got)
			}
		}
		n.wait(5 * time.Second)
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		if got, starts := n.ensuredVolumes.Load(), len(n.cri.Calls("CreateContainer")); got != 2 || starts != 3 {
			t.Errorf("after a restart it was asked for %d times, with %d containers created", got, starts)
		}
	})
}

// TestAMissingImageVolume keeps the container that mounts it from starting, and no other.
func TestAMissingImageVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		p := withImageVolume(testPod("a"), "absent")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d", Image: "busybox"})
		n.apply(p)
		for _, s := range n.status("a").ContainerStatuses {
			if s.Name == "d" && s.State.Running == nil {
				t.Errorf("the other one: %+v", s.State)
			}
			if s.Name == "c" && (s.State.Waiting == nil || s.State.Waiting.Reason != "ErrImagePull" ||
				s.State.Waiting.Message != "not found") {
				t.Errorf("the one that mounts it: %+v", s.State)
			}
		}
	})
}

// imageOf is the image that a created container mounts.
func imageOf(call fake.Call) string {
	return call.Request.(*runtimeapi.CreateContainerRequest).GetConfig().GetMounts()[0].GetImage().GetImage()
}
