//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestReboot reboots the node's machine with static pods, Jobs that are done and pods of each restart policy, and
// compares what became of them with what becomes of them under the kubelet.
func TestReboot(t *testing.T) {
	restarts(t, func() error {
		m, err := scene.Shared.Machine()
		if err != nil {
			return err
		}
		return m.Reboot(t.Context())
	})
}

// TestPowerCutAtRest is TestReboot without a word to the node before.
func TestPowerCutAtRest(t *testing.T) {
	restarts(t, func() error { return cutPower(scene.Shared, t.Context(), 0) })
}

// cutPower cuts the machine's power and gives it back after a pause.
func cutPower(n *scene.Node, ctx context.Context, pause time.Duration) error {
	if err := n.CutPower(ctx); err != nil {
		return err
	}
	time.Sleep(pause)
	return n.PowerOn(ctx)
}

func restarts(t *testing.T, reboot func() error) {
	m := scene.NewUnreadManifestFolder(t)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	s := scene.New(t)
	theirs := rebooted(s, rig.AgentKubelet, m, reboot)
	ours := rebooted(s, rig.AgentMicrolet, m, reboot)
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		t.Logf("%-17s %s", name, theirs[name])
		if ours[name] != theirs[name] {
			t.Errorf("%s: under the kubelet %s; under microlet %s", name, theirs[name], ours[name])
		}
	}
	// The positive control: something was started again, and something stayed as it was.
	if !strings.Contains(theirs["always"], "restarts 1") || !strings.HasPrefix(theirs["done-never"], "Succeeded") {
		t.Errorf("the reboot was none: %v", theirs)
	}
}

// survivor is a pod that a reboot meets.
type survivor struct {
	name string
	pod  *corev1.Pod
	of   source
	// rest is the phase in which it is before the reboot. One that runs has a container main that is ready, and one
	// that is named done has ended.
	rest corev1.PodPhase
}

// source is where a pod comes from.
type source string

const (
	fromAPI  source = "API"
	fromFile source = "file"
	fromJob  source = "Job"
)

// again reports whether the pod runs again after the reboot.
func (p *survivor) again() bool {
	return p.rest == corev1.PodRunning && p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// survivors are pods of each restart policy and source, that run or are done, with volumes, init containers and
// sidecars.
func survivors() []*survivor {
	const (
		running, succeeded, failed = corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed
		always, onFailure, never   = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	)
	restarted := corev1.ContainerRestartPolicyAlways
	sidecar := scene.ShellContainer("sidecar", scene.Forever)
	sidecar.RestartPolicy = &restarted
	disk := corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	memory := corev1.Volume{
		Name:         "memory",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
	}
	// A file on the node's disk is there again, one in memory is not.
	const volumes = `ls /disk /memory; touch /disk/x /memory/x; sync; ` + scene.Forever
	withVolumes := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{disk, memory}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"},
			{Name: "memory", MountPath: "/memory"}}
	}
	withSidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", "exit 0"), sidecar}
	}
	withDone := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, scene.ShellContainer("done", "exit 0"))
	}
	plainly := func(*corev1.Pod) {}

	var all []*survivor
	for _, c := range []struct {
		name   string
		of     source
		policy corev1.RestartPolicy
		script string
		rest   corev1.PodPhase
		change func(*corev1.Pod)
	}{
		{"always", fromAPI, always, scene.Forever, running, plainly},
		{"on-failure", fromAPI, onFailure, scene.Forever, running, plainly},
		{"never", fromAPI, never, scene.Forever, running, plainly},
		{"done-on-failure", fromAPI, onFailure, "exit 0", succeeded, plainly},
		{"done-never", fromAPI, never, "exit 0", succeeded, plainly},
		{"failed-never", fromAPI, never, "exit 3", failed, plainly},
		{"volumes", fromAPI, always, volumes, running, withVolumes},
		{"sidecar", fromAPI, always, scene.Forever, running, withSidecar},
		{"sidecar-never", fromAPI, never, scene.Forever, running, withSidecar},
		{"sidecar-done", fromAPI, onFailure, "exit 0", succeeded, withSidecar},
		{"half", fromAPI, onFailure, scene.Forever, running, withDone},
		{"half-never", fromAPI, never, scene.Forever, running, withDone},
		{"init", fromAPI, always, scene.Forever, running, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", "exit 0"),
				scene.ShellContainer("second", "exit 0")}
		}},
		{"host-network", fromAPI, always, scene.Forever, running, func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		{"file-always", fromFile, always, scene.Forever, running, plainly},
		{"file-on-failure", fromFile, onFailure, scene.Forever, running, plainly},
		{"file-never", fromFile, never, scene.Forever, running, plainly},
		{"file-done", fromFile, onFailure, "exit 0", succeeded, plainly},
		{"file-volumes", fromFile, always, volumes, running, func(p *corev1.Pod) { withVolumes(p); withSidecar(p) }},
		{"job-done", fromJob, never, "exit 0", succeeded, plainly},
		{"job-on-failure", fromJob, onFailure, "exit 0", succeeded, plainly},
		{"job-failed", fromJob, never, "exit 3", failed, plainly},
		{"job-sidecar", fromJob, never, "exit 0", succeeded, withSidecar},
	} {
		p := scene.ScriptPod(c.name, c.script)
		p.Spec.RestartPolicy = c.policy
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		*p.Spec.TerminationGracePeriodSeconds = 2
		c.change(p)
		all = append(all, &survivor{name: c.name, pod: p, of: c.of, rest: c.rest})
	}
	return all
}

// bring has the API server, a file or a Job bring the pod.
func bring(s *scene.Scene, p *survivor, files *scene.ManifestFolder) {
	s.T.Helper()
	switch p.of {
	case fromAPI:
		s.CreatePods(p.pod)
	case fromFile:
		// The UID is a hash of the manifest: what the agent before has left of the pod is another pod's.
		static := p.pod.DeepCopy()
		static.Annotations = map[string]string{"agent": string(s.Agent())}
		files.Put(p.name+".yaml", s.Manifest(static))
	case fromJob:
		_, err := s.API.BatchV1().Jobs(s.Namespace).Create(s.T.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: p.name},
			Spec:       batchv1.JobSpec{BackoffLimit: new(int32), Template: corev1.PodTemplateSpec{Spec: p.pod.Spec}},
		}, metav1.CreateOptions{})
		if err != nil {
			s.T.Fatal(err)
		}
	}
}

// removeAll removes the pods with what brought them.
func removeAll(s *scene.Scene, all []*survivor, files *scene.ManifestFolder) {
	s.T.Helper()
	background := metav1.DeletePropagationBackground
	for _, p := range all {
		switch p.of {
		case fromAPI:
			s.DeletePods(p.name)
		case fromFile:
			files.Remove(p.name + ".yaml")
		case fromJob:
			if err := s.API.BatchV1().Jobs(s.Namespace).Delete(s.T.Context(), p.name,
				metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
				s.T.Fatal(err)
			}
		}
	}
	s.Wait(2*scene.Patience, "the end of the pods", func(v record.View) error { return scene.NoPods(v, s.Namespace) })
}

// now is the pod as the API has it; nil if it has none, or a Job has several.
func now(s *scene.Scene, v record.View, p *survivor) *corev1.Pod {
	switch p.of {
	case fromAPI:
		return v.Pod(s.Namespace, p.name)
	case fromFile:
		return v.Pod(s.Namespace, s.MirrorName(p.name))
	}
	var found *corev1.Pod
	for _, q := range v.Pods(s.Namespace) {
		if q.Labels[batchv1.JobNameLabel] != p.name {
			continue
		}
		if found != nil {
			return nil
		}
		found = q
	}
	return found
}

// resting reports whether the pod is where it stays until the reboot.
func (p *survivor) resting(now *corev1.Pod) bool {
	if now == nil || now.Status.Phase != p.rest {
		return false
	}
	for _, c := range now.Status.ContainerStatuses {
		switch {
		case p.rest != corev1.PodRunning: // the phase says it
		case c.Name == "main" && !c.Ready, c.Name == "done" && c.State.Terminated == nil:
			return false
		}
	}
	return true
}

func mainID(p *corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == "main" {
			return c.ContainerID
		}
	}
	return ""
}

// rebooted brings the pods to a node with this agent, has its machine start again, and reports how each pod ends.
func rebooted(s *scene.Scene, agent rig.Agent, files *scene.ManifestFolder, reboot func() error) map[string]string {
	s.T.Helper()
	s.SwitchTo(s.T, agent, files.Flag())
	all := survivors()
	for _, p := range all {
		bring(s, p, files)
	}
	s.Wait(2*scene.Patience, "pods at rest before the reboot", func(v record.View) error {
		for _, p := range all {
			if now := now(s, v, p); !p.resting(now) {
				return fmt.Errorf("pod %s: %s", p.name, scene.Describe(now))
			}
		}
		return nil
	})
	ids := map[string]string{}
	for v, i := s.Record.View(), 0; i < len(all); i++ {
		ids[all[i].name] = mainID(now(s, v, all[i]))
	}
	begin := time.Now()
	if err := reboot(); err != nil {
		s.T.Fatal(err)
	}
	s.T.Logf("%s: the machine is up again after %s", agent, scene.Milliseconds(time.Since(begin)))
	if err := s.WaitNodeReady(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	// All pods that must run again do so, and then nothing changes any more.
	s.Wait(2*scene.Patience, "pods that run again", func(v record.View) error {
		for _, p := range all {
			if now := now(s, v, p); p.again() && (!p.resting(now) || mainID(now) == ids[p.name]) {
				return fmt.Errorf("pod %s: %s", p.name, scene.Describe(now))
			}
		}
		return nil
	})
	var ends map[string]string
	for still := time.Now(); time.Since(still) < 15*time.Second; time.Sleep(time.Second) {
		if now := endsOf(s, all); !maps.Equal(now, ends) {
			ends, still = now, time.Now()
		}
	}
	removeAll(s, all, files)
	return ends
}

// endsOf says in words what the API says of pods, without what differs from one run to the next.
func endsOf(s *scene.Scene, all []*survivor) map[string]string {
	s.SyncRecord()
	v := s.Record.View()
	ends := map[string]string{}
	for _, p := range all {
		now := now(s, v, p)
		if now == nil {
			ends[p.name] = "gone"
			continue
		}
		words := []string{string(now.Status.Phase), now.Status.Reason}
		var conditions []string
		for _, c := range now.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		slices.Sort(conditions) // the kubelet's own order changes
		words = append(words, conditions...)
		for _, c := range slices.Concat(now.Status.InitContainerStatuses, now.Status.ContainerStatuses) {
			words = append(words,
				fmt.Sprintf("%s: restarts %d, ready %t, %s, before %s", c.Name, c.RestartCount, c.Ready,
					stateOf(c.State), stateOf(c.LastTerminationState)))
			// Whether a shell that does not run again has come to say that it was terminated is chance.
			if p.of == fromAPI && p.again() && c.Name == "main" {
				if text, err := s.ContainerLog(now, c.Name, int(c.RestartCount)); err == nil {
					words = append(words, "log "+strings.Join(strings.Fields(text), " "))
				}
			}
		}
		ends[p.name] = strings.Join(words, "; ")
	}
	return ends
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

const (
	powerCuts   = 10
	powerPods   = 14 // two of each kind, and one with a ConfigMap
	powerImages = 2  // every so many cuts the images are gone before, so that they are pulled as the power goes
)

// TestPowerCut cuts the power at random moments of a batch's start. No pod of it is lost, and when all are deleted
// nothing of them is left.
func TestPowerCut(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	random := rand.New(rand.NewPCG(scene.Seed(t, uint64(time.Now().UnixNano())), 3))

	// How long an undisturbed start takes, with the pulls of images; and the positive control of the search for leftovers.
	removeImages(s)
	makeConfig(s)
	pods, crashing := powerBatch()
	begin := time.Now()
	s.CreatePods(pods...)
	allRun(s, pods, crashing)
	takes := time.Since(begin)
	t.Logf("%d pods run %s after their creation", len(pods), scene.Milliseconds(takes))
	s.LeavesTraces(s.Record.View().Pods(s.Namespace))
	removeBatch(s)

	for i := range powerCuts {
		if i%powerImages == 0 {
			removeImages(s)
		}
		pods, crashing := powerBatch()
		moment := time.Duration(random.Int64N(int64(takes)))
		s.CreatePods(pods...)
		made := s.Record.View().Pods(s.Namespace)
		time.Sleep(moment)
		if err := cutPower(s.Node, t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		clear(s.LostNamespaces) // no network namespace outlives its kernel
		if err := s.WaitNodeReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		allRun(s, pods, crashing)
		v := s.Record.View()
		for _, p := range made {
			if now := v.Pod(s.Namespace, p.Name); now == nil || now.UID != p.UID {
				t.Errorf("cut %d: pod %s was lost", i, p.Name)
			}
		}
		for _, p := range s.Record.History(v.Pod(s.Namespace, powerConfig).UID) {
			for _, c := range p.Status.ContainerStatuses {
				for _, e := range []*corev1.ContainerStateTerminated{c.State.Terminated,
					c.LastTerminationState.Terminated} {
					if e != nil && e.ExitCode == notWhole {
						t.Fatalf("cut %d: a container saw a ConfigMap's file that was not whole", i)
					}
				}
			}
		}
		t.Logf("cut %d, %s after the creation of %d pods: all run %s after the power's return", i, scene.Milliseconds(moment),
			len(pods), scene.Milliseconds(time.Since(begin)))
		removeBatch(s)
	}
}

const (
	powerConfig = "config" // a pod, and its ConfigMap
	configSize  = 1 << 16
	notWhole    = 5 // the exit code of a container whose file has another size
)

// powerBatch are pods of all kinds, and one that reads a file of a ConfigMap.
func powerBatch() (pods []*corev1.Pod, crashing map[string]bool) {
	pods, crashing = scene.Crowd(powerPods)
	p := scene.ScriptPod(powerConfig,
		fmt.Sprintf(`test "$(wc -c </config/file)" = %d || exit %d; %s`, configSize, notWhole, scene.Forever))
	p.Spec.Volumes = []corev1.Volume{{
		Name: "config",
		VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: powerConfig},
		}},
	}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config"}}
	return append(pods, p), crashing
}

func makeConfig(s *scene.Scene) {
	s.T.Helper()
	_, err := s.API.CoreV1().ConfigMaps(s.Namespace).Create(s.T.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: powerConfig},
		Data:       map[string]string{"file": strings.Repeat("x", configSize)},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
}

// allRun waits until all pods run: by the word of the API, with which the runtime and the disk agree.
func allRun(s *scene.Scene, pods []*corev1.Pod, crashing map[string]bool) {
	s.T.Helper()
	scene.Await(s.T, 2*scene.Patience, "all pods to run", func() error {
		v := s.Record.View()
		for _, p := range pods {
			if now := v.Pod(s.Namespace, p.Name); now == nil || !scene.HasRun(now, crashing[p.Name]) {
				return errors.New("pod " + p.Name + ": " + scene.Describe(now))
			}
		}
		return s.Agree()
	})
}

// removeBatch deletes all pods of the scenario, which leave nothing.
func removeBatch(s *scene.Scene) {
	s.T.Helper()
	s.SyncRecord()
	pods := s.Record.View().Pods(s.Namespace)
	for _, p := range pods {
		s.DeletePods(p.Name)
	}
	s.Wait(scene.Patience, "the pods' end", func(v record.View) error { return scene.NoPods(v, s.Namespace) })
	s.LeavesNothing(pods)
}

// removeImages has the runtime forget all images.
func removeImages(s *scene.Scene) {
	s.T.Helper()
	conn, err := s.DialRuntime()
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.T.Context(), scene.Patience)
	defer cancel()
	c := runtimeapi.NewImageServiceClient(conn)
	all, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	for _, image := range all.GetImages() {
		if err == nil {
			_, err = c.RemoveImage(ctx,
				&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.GetId()}})
		}
	}
	if err != nil {
		s.T.Fatal(err)
	}
}
