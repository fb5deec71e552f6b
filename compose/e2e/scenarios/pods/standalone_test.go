package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// withoutAPIServer makes microlet the agent of a node that has no apiserver, until the test ends.
func withoutAPIServer(n *scene.Node, t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--kubeconfig="}, args...) // the last one counts
	if err := n.SwitchAgent(t.Context(), rig.AgentMicrolet, n.Executable, args...); err != nil {
		t.Fatal(err)
	}
	scene.Current.Agent, scene.Current.Args = rig.AgentMicrolet, args
	t.Cleanup(func() { n.SwitchTo(t, scene.FirstAgent) })
	n.WaitHealthy(t, scene.Patience)
}

// TestStandalone: a node of its own runs what its folder and root ask for, through the death of every process, and
// never asks an apiserver.
func TestStandalone(t *testing.T) {
	s := scene.New(t)
	m := &scene.ManifestFolder{T: t, Dir: t.TempDir()}
	withoutAPIServer(scene.Shared, t, m.Flag())
	out := t.TempDir()

	m.Put("folder.yaml", localPod(s, "folder", out))
	runsHere(s, out, "folder")
	if got, err := microletPod(s, localPod(s, "by-hand", out), "run-pod", "-", "--wait"); err != nil {
		t.Fatalf("run-pod: %v\n%s", err, got)
	}
	runsHere(s, out, "by-hand")
	m.Put("broken.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: broken}\nspec: {}\n"))

	for _, c := range needAPI() {
		p := scene.ScriptPod("refused", scene.Forever)
		c.change(p)
		if got, err := microletPod(s, s.Manifest(p), "run-pod", "-"); err == nil ||
			!strings.Contains(string(got), c.field) ||
			!strings.Contains(string(got), "static pods may not reference "+c.what) {
			t.Errorf("a pod that needs %s: %v\n%s", c.what, err, got)
		}
	}
	onlyRoot(s, localPod(s, "stranger", out))

	begin := localState(s, "folder", "by-hand")
	s.Signal(t, syscall.SIGKILL, role.Podsync)
	s.WaitHealthy(t, scene.Patience)
	stays(s, begin, "the death of podsync")
	s.Signal(t, syscall.SIGKILL, scene.Processes...)
	s.WaitHealthy(t, scene.Patience)
	time.Sleep(2 * time.Second) // in which podsync could end what it takes for another pod's
	stays(s, begin, "the death of all at once")
	if err := scene.Shared.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.EndContainer("by-hand-" + s.NodeName())
	if err := scene.Shared.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	scene.Await(t, scene.Patience, "the restart of a container that ended meanwhile",
		func() error { return s.RunsAttempt("by-hand-"+s.NodeName(), 1) })
	stays(s, map[string]string{"folder": begin["folder"]}, "the start after a stop")

	pods := []*corev1.Pod{{}, {}}
	for i, name := range []string{"folder", "by-hand"} {
		pods[i].Name, pods[i].UID = name+"-"+s.NodeName(), localUID(s, name)
	}
	if got, err := microletPod(s, nil, "rm-pod", "by-hand", "--namespace="+s.Namespace, "--wait"); err != nil {
		t.Errorf("rm-pod: %v\n%s", err, got)
	}
	if got, err := microletPod(s, nil, "rm-pod", "by-hand", "--namespace="+s.Namespace); err == nil ||
		!strings.Contains(string(got), "not found") {
		t.Errorf("a second rm-pod: %v\n%s", err, got)
	}
	m.Remove("folder.yaml")
	scene.Await(t, scene.Patience, "nothing left of the pods", func() error {
		left, err := s.Traces(pods)
		if err == nil && len(left) > 0 {
			err = errors.New(strings.Join(left, "\n"))
		}
		return err
	})
	if all := s.Record.View().Pods(s.Namespace); len(all) > 0 {
		t.Errorf("the API has %d pods of a node without one, such as %s", len(all), all[0].Name)
	}
}

// localPod is the manifest of a pod that writes what it has to a hostPath folder: its environment, with a field of its
// own, and what it wrote to and read from an emptyDir.
func localPod(s *scene.Scene, name, out string) []byte {
	s.T.Helper()
	p := scene.ScriptPod(name,
		`echo data > /scratch/a && echo "$WORD $POD $(cat /scratch/a)" > /out/.$POD && mv /out/.$POD /out/$POD; `+
			scene.Forever)
	p.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "WORD", Value: "hello"},
		{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "out", MountPath: "/out"},
		{Name: "scratch", MountPath: "/scratch"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "out", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: out}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	return s.Manifest(p)
}

// runsHere waits for what a localPod writes.
func runsHere(s *scene.Scene, out, name string) {
	s.T.Helper()
	full := name + "-" + s.NodeName()
	scene.Await(s.T, scene.Patience, "what pod "+name+" writes", func() error {
		got, err := os.ReadFile(filepath.Join(out, full))
		if want := "hello " + full + " data\n"; err == nil && string(got) != want {
			s.T.Fatalf("pod %s writes %q, want %q", name, got, want)
		}
		return err
	})
}

// unresolved is a change that makes a pod need the API.
type unresolved struct {
	what, field string
	change      func(p *corev1.Pod)
}

func needAPI() []unresolved {
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	named := corev1.LocalObjectReference{Name: "a"}
	return []unresolved{
		{"configmaps", "spec.volumes[0]",
			volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named}})},
		{"secrets", "spec.volumes[0]", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}})},
		{"persistentvolumeclaims", "spec.volumes[0]", volume(corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"},
		})},
		{"configmaps", "spec.containers[0].envFrom[0]", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named},
			}}
		}},
		{"secrets", "spec.containers[0].env[0]", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named, Key: "a"},
			}}}
		}},
		{"serviceaccounts", "spec.serviceAccountName", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "a" }},
		{"secrets", "spec.imagePullSecrets[0]",
			func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{named} }},
	}
}

// onlyRoot: neither a stranger nor one of the node's own services may run a pod. The stranger does not come to the
// socket; the service does, and podsync asks the kernel who it is.
func onlyRoot(s *scene.Scene, manifest []byte) {
	s.T.Helper()
	// Where the executable is may be closed to others.
	dir, err := os.MkdirTemp("", "standalone")
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "microlet")
	if err := errors.Join(os.Chmod(dir, 0o755), copyFile(program, s.Executable, 0o755)); err != nil {
		s.T.Fatal(err)
	}
	pleg, err := role.Get(role.PLEG)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, who := range []struct {
		name     string
		uid, gid int
	}{
		{"nobody", 65534, 65534},
		{"pleg", pleg.UID, pleg.GID},
	} {
		ctx, cancel := context.WithTimeout(s.T.Context(), scene.Patience)
		cmd := exec.CommandContext(ctx, program, "run-pod", "-", "--runtime-dir="+s.RuntimeDir())
		cmd.Dir = "/"
		cmd.Stdin = bytes.NewReader(manifest)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(who.uid), Gid: uint32(who.gid)},
		}
		out, err := cmd.CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), "only root may ask podsync") {
			s.T.Errorf("run-pod as %s: %v\n%s", who.name, err, out)
		}
	}
	if all, err := containersOf(s, "stranger"); err != nil || len(all) > 0 {
		s.T.Errorf("what was refused has %d containers: %v", len(all), err)
	}
}

func copyFile(to, from string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// containersOf are the containers of a static pod, by its manifest's name.
func containersOf(s *scene.Scene, name string) ([]*runtimeapi.Container, error) {
	return s.Containers(name + "-" + s.NodeName())
}

// localUID is the UID that the runtime has of a static pod.
func localUID(s *scene.Scene, name string) types.UID {
	s.T.Helper()
	all, err := containersOf(s, name)
	if err != nil || len(all) == 0 {
		s.T.Fatalf("pod %s has %d containers: %v", name, len(all), err)
	}
	return types.UID(all[0].GetLabels()["io.kubernetes.pod.uid"])
}

// localState are the running containers of static pods, by the pods' names.
func localState(s *scene.Scene, names ...string) map[string]string {
	s.T.Helper()
	state := map[string]string{}
	for _, name := range names {
		all, err := containersOf(s, name)
		if err != nil {
			s.T.Fatal(err)
		}
		for _, c := range all {
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				state[name] += fmt.Sprintf("%s in %s;", c.GetId(), c.GetPodSandboxId())
			}
		}
		if state[name] == "" {
			s.T.Fatalf("nothing of pod %s runs", name)
		}
	}
	return state
}

// stays judges that pods have the containers that they had.
func stays(s *scene.Scene, was map[string]string, what string) {
	s.T.Helper()
	for name, state := range was {
		if now := localState(s, name)[name]; now != state {
			s.T.Errorf("after %s pod %s has %s, had %s", what, name, now, state)
		}
	}
}
