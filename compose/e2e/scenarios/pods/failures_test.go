package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// golden is what the real kubelet shows of the pods that fail, recorded in the same rig. The long run
// compares it with a live kubelet first.
const golden = "testdata/failures.json"

// settling is how long pods are looked at after they have shown all that they should, for what they should not.
const settling = 3 * time.Second

// symptom is what a user sees of a pod that fails: without order and count, which depend on when one looks.
type symptom struct {
	Phase      string   `json:"phase"`
	Waiting    []string `json:"waiting"`    // reason: message, of all times but the first moments
	Terminated []string `json:"terminated"` // reason, exit code and message of containers that ended
	Conditions []string `json:"conditions"` // as they came to be
	Events     []string `json:"events"`     // type reason: message
}

// failing are pods that cannot run, with the waiting reasons by which they have shown all they do.
func failing() (pods []*corev1.Pod, until map[string][]string) {
	image := scene.PausePod("no-image")
	image.Spec.Containers[0].Image = "registry.example/missing/image:1.0"
	invalid := scene.PausePod("invalid-image")
	invalid.Spec.Containers[0].Image = "registry.example/UPPER:1.0"
	never := scene.PausePod("never-pulled")
	never.Spec.Containers[0].Image = "registry.example/never/pulled:1.0"
	never.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	command := scene.PausePod("no-command")
	command.Spec.Containers[0].Command = []string{"/does/not/exist"}
	key := scene.ScriptPod("no-configmap", scene.Forever)
	key.Spec.Containers[0].Env = []corev1.EnvVar{{
		Name: "A",
		ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}, Key: "a",
		}},
	}}
	yes := true
	root := scene.ScriptPod("must-not-be-root", scene.Forever)
	root.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes}
	volume := withImageVolume(scene.PausePod("no-image-volume"), corev1.ImageVolumeSource{
		Reference: "registry.example/missing/volume:1.0",
	})
	neverVolume := withImageVolume(scene.PausePod("never-pulled-volume"), corev1.ImageVolumeSource{
		Reference: "registry.example/never/volume:1.0", PullPolicy: corev1.PullNever,
	})
	all := []*corev1.Pod{image, invalid, never, command, key, root, volume, neverVolume}
	return all, map[string][]string{
		"no-image":         {"ErrImagePull", "ImagePullBackOff"},
		"invalid-image":    {"InvalidImageName"},
		"never-pulled":     {"ErrImageNeverPull"},
		"no-command":       {"RunContainerError", "CrashLoopBackOff"},
		"no-configmap":     {"CreateContainerConfigError"},
		"must-not-be-root": {"CreateContainerConfigError"},

		"no-image-volume":     {"ErrImagePull", "ImagePullBackOff"},
		"never-pulled-volume": {"ErrImageNeverPull"},
	}
}

// withImageVolume has the pod's container mount an image.
func withImageVolume(p *corev1.Pod, source corev1.ImageVolumeSource) *corev1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
		Name: "image", VolumeSource: corev1.VolumeSource{Image: &source},
	})
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "image", MountPath: "/image"})
	return p
}

// symptoms runs the failing pods beside a healthy neighbour and returns what they show. What was recorded is waited
// for, unless it is nil.
func symptoms(t *testing.T, recorded map[string]symptom) map[string]symptom {
	t.Helper()
	s := scene.New(t)
	// The neighbour's image is the failing pods' too, so that none of them pulls it.
	s.CreatePods(scene.ScriptPod("neighbour", scene.Forever))
	s.WaitReady(scene.Patience, "neighbour")
	w := s.Witness("neighbour")
	pods, until := failing()
	s.CreatePods(pods...)
	for _, p := range pods {
		s.Wait(scene.Patience, "what is wrong with pod "+p.Name, func(v record.View) error {
			got := symptomOf(s, v, p.Name)
			for _, reason := range until[p.Name] {
				if !slices.ContainsFunc(got.Waiting, func(w string) bool { return strings.HasPrefix(w, reason+":") }) {
					return fmt.Errorf("it has not shown %s, only %v", reason, got.Waiting)
				}
			}
			if !slices.ContainsFunc(got.Events, func(e string) bool { return strings.HasPrefix(e, "Warning ") }) {
				return fmt.Errorf("no warning event, only %v", got.Events)
			}
			return nil
		})
	}
	all := comeTo(s, recorded, func(v record.View) map[string]symptom {
		all := map[string]symptom{}
		for _, p := range pods {
			all[p.Name] = symptomOf(s, v, p.Name)
		}
		return all
	})
	s.CreatePods(scene.PausePod("neighbour-2"))
	s.WaitReady(scene.Patience, "neighbour-2")
	w.Untouched()
	return all
}

// comeTo returns what collect gives a moment after it gave what was recorded; or in the end, if it never does.
func comeTo[T any](s *scene.Scene, recorded map[string]T, collect func(record.View) map[string]T) map[string]T {
	s.T.Helper()
	if recorded != nil {
		err := s.WaitErr(scene.Patience, func(v record.View) error {
			if cmp.Equal(recorded, collect(v)) {
				return nil
			}
			return errors.New("it shows other things than were recorded")
		})
		if err != nil {
			s.T.Logf("after %s: %v", scene.Patience, err) // in what it differs is the caller's to say
		}
	}
	time.Sleep(settling)
	s.SyncRecord()
	return collect(s.Record.View())
}

// symptomOf collects what a pod has shown until now.
func symptomOf(s *scene.Scene, v record.View, pod string) symptom {
	now := v.Pod(s.Namespace, pod)
	if now == nil {
		return symptom{}
	}
	got := symptom{Phase: string(now.Status.Phase)}
	conditions := map[string]bool{}
	clean := func(text string) string { return normal(text, now) }
	for _, p := range s.Record.History(now.UID) {
		for _, c := range p.Status.ContainerStatuses {
			// A status that is followed closely by another need not reach the API, and this one does not come again.
			if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
				got.Waiting = append(got.Waiting, clean(w.Reason+": "+w.Message))
			}
			for _, e := range []*corev1.ContainerStateTerminated{c.State.Terminated,
				c.LastTerminationState.Terminated} {
				if e != nil {
					got.Terminated = append(got.Terminated,
						clean(fmt.Sprintf("%s %d: %s", e.Reason, e.ExitCode, e.Message)))
				}
			}
		}
	}
	for _, c := range now.Status.Conditions {
		conditions[clean(fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))] = true
	}
	for c := range conditions {
		got.Conditions = append(got.Conditions, c)
	}
	for _, e := range v.Events(s.Namespace, pod) {
		if e.Source.Component == "kubelet" {
			got.Events = append(got.Events, clean(e.Type+" "+e.Reason+": "+e.Message))
		}
	}
	for _, list := range []*[]string{&got.Waiting, &got.Terminated, &got.Conditions, &got.Events} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return got
}

var (
	longHex  = regexp.MustCompile(`[0-9a-f]{64}`)
	duration = regexp.MustCompile(`\b([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?(ms|µs|s)\b`)
	address  = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
)

// normal takes out of a text what differs from run to run.
func normal(text string, p *corev1.Pod) string {
	text = strings.NewReplacer(string(p.UID), "<uid>", p.Namespace, "<namespace>").Replace(text)
	text = longHex.ReplaceAllString(text, "<id>")
	text = duration.ReplaceAllString(text, "<time>")
	return address.ReplaceAllString(text, "<registry>")
}

// readRecorded is what was recorded of the kubelet in a file.
func readRecorded[T any](t *testing.T, file string) (want T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	return want
}

// TestFailures compares what failing pods show with what the real kubelet shows of them.
func TestFailures(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	failures(t)
}

func failures(t *testing.T) {
	recorded := readRecorded[map[string]symptom](t, golden)
	if diff := cmp.Diff(recorded, symptoms(t, recorded)); diff != "" {
		t.Errorf("what failing pods show (-kubelet +microlet):\n%s", diff)
	}
	unsupportedField(t)
}

// unsupportedField: a pod that uses an unsupported field is refused, and not started without the field.
func unsupportedField(t *testing.T) {
	s := scene.New(t)
	s.CreatePods(scene.PausePod("neighbour"))
	s.WaitReady(scene.Patience, "neighbour")
	w := s.Witness("neighbour")
	p := scene.PausePod("not-built")
	p.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
		ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2001-04.com.example:disk"},
	}}}
	s.CreatePods(p)
	s.Wait(scene.Patience, "the refusal", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, "not-built") {
			if c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError" &&
				strings.Contains(c.State.Waiting.Message, "spec.volumes[0].iscsi") {
				return nil
			}
		}
		return fmt.Errorf("pod: %s", scene.Describe(v.Pod(s.Namespace, "not-built")))
	})
	s.Wait(scene.Patience, "the event of the refusal", func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, "not-built") {
			if seen = append(seen, e.Reason+": "+e.Message); e.Type == corev1.EventTypeWarning &&
				strings.Contains(e.Message, "spec.volumes[0].iscsi") {
				return nil
			}
		}
		return fmt.Errorf("only %q", seen)
	})
	if all, err := s.Containers("not-built"); err != nil || len(all) > 0 {
		t.Errorf("the refused pod has %d containers: %v", len(all), err)
	}
	s.CreatePods(scene.PausePod("neighbour-2"))
	s.WaitReady(scene.Patience, "neighbour-2")
	w.Untouched()
}
