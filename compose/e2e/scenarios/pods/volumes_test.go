package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// shown is how long a running container may wait for a change of what is mounted into it: less than 60 s, when a
// kubelet looks for the first time.
const shown = 45 * time.Second

func TestVolumes(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	t.Run("every kind", everyVolume)
	t.Run("what is missing", missingVolumes)
	t.Run("subPaths that lead out", subPathsOut)
}

// look prints what a container sees of its volumes.
const look = `cd /v
echo content: config=$(cat config/key) secret=$(cat secret/deep/password) \
  labels=$(cat downward/labels) projected=$(cat projected/key)
echo env: $FROM_FILE $FROM_CONFIG
stat -L -c 'mode: %n %a %g' empty memory config secret secret/deep/password config/key sub file
grep -q " /v/memory tmpfs .*size=4096k" /proc/self/mounts && echo memory: 4 MiB
echo kept: $(cat empty/kept sub/kept) bound: $(cat file)
(echo x >config/new) 2>/dev/null || echo config: read-only
(echo x >recursive/new) 2>/dev/null || echo recursive: read-only
test -x image/bin/busybox && test -e image-bin/sh && echo image: busybox
(echo x >image/new) 2>/dev/null || echo image: read-only
test -w host && echo x >host/by-the-pod
`

// volumesPod has a volume of each kind that needs no driver.
func volumesPod(host string) *corev1.Pod {
	directory, password, group := corev1.HostPathDirectoryOrCreate, int32(0o400), int64(4242)
	p := scene.ScriptPod("volumes",
		look+"echo ==end; while sleep 0.2; do echo now: $(cat /v/config/key) $(cat /v/downward/labels) $(cat "+
			"/v/secret/deep/password); done")
	main := &p.Spec.Containers[0]
	main.Env = []corev1.EnvVar{
		{Name: "POD_NAME",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: "FROM_FILE", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "empty",
			Path: "env", Key: "VAR"}}},
		{Name: "FROM_CONFIG",
			ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "config"}, Key: "other"}}},
	}
	recursive := corev1.RecursiveReadOnlyIfPossible
	main.VolumeMounts = []corev1.VolumeMount{
		{Name: "empty", MountPath: "/v/empty"}, {Name: "memory", MountPath: "/v/memory"},
		{Name: "host", MountPath: "/v/host"},
		{Name: "config", MountPath: "/v/config"}, {Name: "secret", MountPath: "/v/secret"},
		{Name: "downward", MountPath: "/v/downward"},
		{Name: "projected", MountPath: "/v/projected"},
		{Name: "empty", MountPath: "/v/sub", SubPathExpr: "$(POD_NAME)/data"},
		{Name: "config", MountPath: "/v/file", SubPath: "other"},
		{Name: "image", MountPath: "/v/image"}, {Name: "image", MountPath: "/v/image-bin", SubPath: "bin"},
		{Name: "empty", MountPath: "/v/recursive", ReadOnly: true, RecursiveReadOnly: &recursive},
	}
	p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("init",
		`echo "VAR='from the file'" >/e/env; echo one >/e/kept; d=/e/$(hostname)/data; mkdir -p $d; echo two >$d/kept`)}
	p.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/e"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	config := corev1.LocalObjectReference{Name: "config"}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: main.Image}}},
		{Name: "memory",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
				SizeLimit: new(resource.MustParse("4Mi"))}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host,
			Type: &directory}}},
		{Name: "config",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: config}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret",
			Items: []corev1.KeyToPath{{Key: "password", Path: "deep/password", Mode: &password}}}}},
		{Name: "downward",
			VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
		{Name: "projected",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: config}}}}}},
	}
	return p
}

// everyVolume: a pod sees all of its volumes as it should, changes of them while it runs, and all of
// them again when its container starts again after podsync did.
func everyVolume(t *testing.T) {
	s := scene.New(t)
	config(s, "config", map[string]string{"key": "first", "other": "bound"})
	secret(s, "secret", "hidden")
	host := filepath.Join(t.TempDir(), "made", "here")
	s.CreatePods(volumesPod(host))
	s.WaitReady(scene.Patience, "volumes")
	p := s.Record.View().Pod(s.Namespace, "volumes")
	sees(s, p, 0, scene.Patience, "==end")
	for _, want := range []string{
		`content: config=first secret=hidden labels=app="volumes" projected=first`, "env: from the file bound",
		"mode: empty 2777 4242", "mode: memory 3777 4242", "mode: config 2777 4242", "mode: secret 3777 4242",
		"mode: secret/deep/password 440 4242", "mode: config/key 644 4242", "mode: sub 2755 4242",
		"mode: file 644 4242",
		"memory: 4 MiB", "kept: one two bound: bound", "config: read-only", "recursive: read-only",
		"image: busybox", "image: read-only",
	} {
		sees(s, p, 0, 0, want)
	}
	if _, err := os.Stat(filepath.Join(host, "by-the-pod")); err != nil {
		t.Errorf("the container did not write to the hostPath: %v", err)
	}
	for _, m := range p.Status.ContainerStatuses[0].VolumeMounts {
		if m.MountPath == "/v/recursive" &&
			(m.RecursiveReadOnly == nil || *m.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled) {
			t.Errorf("the status says of the recursively read-only mount: %v", m.RecursiveReadOnly)
		}
	}
	changes(s, p, `now: second app="volumes" hidden`,
		func() { config(s, "config", map[string]string{"key": "second", "other": "bound"}) })
	changes(s, p, `now: second app="volumes" other`, func() { secret(s, "secret", "other") })
	changes(s, p, "labelled=", func() {
		_, err := s.API.CoreV1().Pods(s.Namespace).Patch(t.Context(), p.Name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"labelled":"yes"}}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	})
	s.KillDuringStart("volumes-after", role.Podsync)
	s.EndContainer("volumes")
	s.Wait(scene.Patience, "the container's next start", s.Restarted("volumes", 1))
	sees(s, p, 1, scene.Patience, "kept: one two bound: bound")
	changes(s, p, `now: third`, func() { config(s, "config", map[string]string{"key": "third", "other": "bound"}) })
	s.DeletePods("volumes", "volumes-after")
	s.Wait(scene.Patience, "the pods' end", s.AreGone("volumes", "volumes-after"))
	s.LeavesNothing([]*corev1.Pod{p})
}

// missingVolumes: a pod waits for what its volumes name, reports each, and starts when all is there.
func missingVolumes(t *testing.T) {
	s := scene.New(t)
	p := scene.PausePod("waits")
	p.Spec.Volumes = []corev1.Volume{
		{Name: "config",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "late"}}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late"}}},
		{Name: "optional", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "never",
			Optional: new(true)}}},
	}
	for _, v := range p.Spec.Volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	s.CreatePods(p)
	for _, want := range []string{
		`MountVolume.SetUp failed for volume "config" : configmap "late" not found`,
		`MountVolume.SetUp failed for volume "secret" : secret "late" not found`,
	} {
		s.Wait(scene.Patience, "the event", eventWith(s, "waits", "FailedMount", want))
	}
	config(s, "late", map[string]string{"k": "v"})
	secret(s, "late", "v")
	begin := time.Now()
	s.WaitReady(scene.Patience, "waits")
	t.Logf("Ready %s after the last object came", scene.Milliseconds(time.Since(begin)))
}

// subPathsOut: a pod that has put a link to the node's files into its volume gets nothing by it.
func subPathsOut(t *testing.T) {
	s := scene.New(t)
	p := scene.PausePod("leads-out")
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
	p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("init",
		"ln -s /etc /v/link; ln -s ../../../../.. /v/up")}
	p.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	up := p.DeepCopy()
	up.Name = "leads-up"
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "link"}}
	up.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "up/new"}}
	s.CreatePods(p, up)
	s.Wait(scene.Patience, "the refusal",
		eventWith(s, "leads-out", "Failed", `Error: failed to prepare subPath for volumeMount "v" of container "main"`))
	s.Wait(scene.Patience, "the refusal",
		eventWith(s, "leads-up", "Failed",
			`Error: failed to create subPath directory for volumeMount "v" of container "main"`))
	for _, name := range []string{p.Name, up.Name} {
		s.Wait(scene.Patience, "the container's reason", func(v record.View) error {
			statuses := s.ContainerStatuses(v, name)
			if len(statuses) > 0 && statuses[0].State.Waiting != nil &&
				statuses[0].State.Waiting.Reason == "CreateContainerConfigError" {
				return nil
			}
			return errors.New(scene.Describe(v.Pod(s.Namespace, name)))
		})
	}
}

// config makes the ConfigMap have this content.
func config(s *scene.Scene, name string, data map[string]string) {
	s.T.Helper()
	c := s.API.CoreV1().ConfigMaps(s.Namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := c.Update(s.T.Context(), object, metav1.UpdateOptions{})
	if err != nil {
		_, err = c.Create(s.T.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		s.T.Fatal(err)
	}
}

// secret makes the Secret have this password.
func secret(s *scene.Scene, name, password string) {
	s.T.Helper()
	c := s.API.CoreV1().Secrets(s.Namespace)
	object := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		StringData: map[string]string{"password": password},
	}
	_, err := c.Update(s.T.Context(), object, metav1.UpdateOptions{})
	if err != nil {
		_, err = c.Create(s.T.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		s.T.Fatal(err)
	}
}

// sees waits until a start of the pod's main container has written something.
func sees(s *scene.Scene, p *corev1.Pod, restart int, limit time.Duration, want string) {
	s.T.Helper()
	scene.Await(s.T, limit, "what the container sees", func() error {
		text, err := s.ContainerLog(p, "main", restart)
		if err == nil && !strings.Contains(text, want) {
			text, _, _ = strings.Cut(text, "==end")
			err = fmt.Errorf("not %q, but:\n%s", want, text)
		}
		return err
	})
}

// changes makes a change, and waits until the pod's running container sees it.
func changes(s *scene.Scene, p *corev1.Pod, want string, change func()) {
	s.T.Helper()
	restart := int(s.ContainerStatuses(s.Record.View(), p.Name)[0].RestartCount)
	change()
	begin := time.Now()
	sees(s, p, restart, shown, want)
	s.T.Logf("%s: seen %s after the change", want, scene.Milliseconds(time.Since(begin)))
}

// eventWith waits for an event with a text about a pod.
func eventWith(s *scene.Scene, pod, reason, text string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			if seen = append(seen, e.Reason+": "+e.Message); e.Reason == reason && e.Message == text {
				return nil
			}
		}
		return fmt.Errorf("no event %s %q about pod %s, only %q", reason, text, pod, seen)
	}
}
