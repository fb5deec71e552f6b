//go:build long

package services

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// TestHelperPod runs a second prober as a helper pod, as docs/helpers.md says: it takes its share of the probes, and
// gives it back when it goes. The same pod in another namespace is rejected.
func TestHelperPod(t *testing.T) {
	// The scene's namespace is the next one.
	namespace := fmt.Sprintf("scene-%d", scene.Scenes.Load()+1)
	scene.Shared.UseMicrolet(t, "--helper-namespace="+namespace)
	s := scene.New(t)
	if s.Namespace != namespace {
		t.Fatalf("the scene's namespace is %s, want %s", s.Namespace, namespace)
	}
	w := createShared(s)
	even(s, 0)

	helper := helperPod(s, "helper")
	s.CreatePods(helper)
	s.WaitReady(scene.Patience, helper.Name)
	even(s, 0, 1)
	gathered(s, 0, 1)

	s.DeletePods(helper.Name)
	s.Wait(scene.Patience, "the end of the helper", s.AreGone(helper.Name))
	even(s, 0)
	scene.Await(t, scene.Patience, "the helper's record to go", func() error {
		left, err := os.ReadDir(filepath.Join(s.RuntimeDir(), "helpers"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	})
	w.Untouched()

	other := scene.New(t)
	other.CreatePods(helperPod(other, "stranger"))
	other.Wait(scene.Patience, "the rejection", func(v record.View) error {
		if p := v.Pod(other.Namespace, "stranger"); p == nil || p.Status.Reason != "HelperForbidden" {
			return fmt.Errorf("the pod is %v", p)
		}
		return nil
	})
}

// helperPod is a pod that is the second prober.
func helperPod(s *scene.Scene, name string) *corev1.Pod {
	s.T.Helper()
	id, err := role.Get(role.Prober)
	if err != nil {
		s.T.Fatal(err)
	}
	groups := make([]int64, len(id.Groups))
	for i, g := range id.Groups {
		groups[i] = int64(g)
	}
	program, err := filepath.Abs(s.Executable)
	if err != nil {
		s.T.Fatal(err)
	}
	p := scene.PausePod(name)
	p.Labels["microlet.dev/role"] = string(role.Prober)
	p.Spec.HostPID = true
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: new(int64(id.UID)), RunAsGroup: new(int64(id.GID)), SupplementalGroups: groups,
	}
	// The program stands on the host's C library.
	mounts := map[string]string{"run": s.RuntimeDir(), "program": program, "lib": "/lib", "lib64": "/lib64"}
	at := map[string]string{"program": "/microlet"}
	var mounted []corev1.VolumeMount
	for _, name := range slices.Sorted(maps.Keys(mounts)) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: mounts[name]}},
		})
		mounted = append(mounted, corev1.VolumeMount{
			Name: name, MountPath: cmp.Or(at[name], mounts[name]), ReadOnly: name != "run",
		})
	}
	p.Spec.Containers = []corev1.Container{{
		Name: "prober", Image: rig.BusyboxImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{
			"/microlet", "prober", "--runtime-dir=" + s.RuntimeDir(), "--node-name=" + s.NodeName(), "--replica=1",
			"--resolved-config=" + filepath.Join(s.RuntimeDir(), "config", "prober.yaml"),
			"--peer-cgroups=" + s.AgentCgroup(),
		},
		VolumeMounts: mounted,
	}}
	return p
}
