package pods

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// goldenRejections is what the real kubelet makes of pods that name their node and do not belong
// there, recorded in the same rig.
const goldenRejections = "testdata/admission.json"

// rejection is what a pod shows that the node would not have, or not any more.
type rejection struct {
	Reason  string  `json:"reason"`
	Message string  `json:"message"`
	Shown   symptom `json:"shown"`
}

// bound is a pod that goes to the node without the scheduler.
func bound(s *scene.Scene, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeName = s.NodeName()
	return p
}

func onPort(name string, port int32) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{
		ContainerPort: 80,
		HostPort:      port,
		Protocol:      corev1.ProtocolTCP,
	}}
	return p
}

func requesting(p *corev1.Pod, milliCPU int64) *corev1.Pod {
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
	}
	return p
}

// rejections has pods rejected and one preempted, and returns what they show. What was recorded is waited for, unless
// it is nil.
func rejections(t *testing.T, recorded map[string]rejection) map[string]rejection {
	t.Helper()
	const port = 28080
	s := scene.New(t)
	// Its image is the victims' too, so that neither of them pulls it.
	holder := scene.ScriptPod("holder", scene.Forever)
	holder.Spec.Containers[0].Ports = onPort("", port).Spec.Containers[0].Ports
	s.CreatePods(bound(s, holder))
	s.WaitReady(scene.Patience, "holder")
	w := s.Witness("holder")

	selects := scene.PausePod("elsewhere")
	selects.Spec.NodeSelector = map[string]string{"example.com/no-such": "node"}
	unsafe := scene.PausePod("unsafe-sysctl")
	unsafe.Spec.SecurityContext = &corev1.PodSecurityContext{
		Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1000"}},
	}
	pods := []*corev1.Pod{onPort("port-taken", port), requesting(scene.PausePod("too-large"), 1_000_000), selects, unsafe}
	for _, p := range pods {
		bound(s, p)
	}
	s.CreatePods(pods...)

	node, err := s.API.CoreV1().Nodes().Get(t.Context(), s.NodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// One that fails when it is asked to end and one that does not: their phases differ.
	half := node.Status.Allocatable.Cpu().MilliValue()/2 - 50
	victims := []*corev1.Pod{
		bound(s, requesting(scene.ScriptPod("preempted", "trap 'exit 3' TERM; echo "+scene.Begins+"; "+scene.Forever), half)),
		bound(s, requesting(scene.ScriptPod("preempted-politely", "echo "+scene.Begins+"; "+scene.Forever), half)),
	}
	s.CreatePods(victims...)
	s.WaitReady(scene.Patience, "preempted", "preempted-politely")
	// A shell that has not come to its trap yet does not hear the signal at all.
	sees(s, s.Record.View().Pod(s.Namespace, "preempted"), 0, scene.Patience, scene.Begins)
	sees(s, s.Record.View().Pod(s.Namespace, "preempted-politely"), 0, scene.Patience, scene.Begins)
	critical := requesting(scene.PausePod("critical"), half+200)
	critical.Spec.PriorityClassName = "system-node-critical"
	s.CreatePods(bound(s, critical))
	s.WaitReady(scene.Patience, "critical")

	for _, p := range slices.Concat(pods, victims) {
		s.Wait(scene.Patience, "the end of pod "+p.Name, func(v record.View) error {
			now := v.Pod(s.Namespace, p.Name)
			if now == nil || now.Status.Phase != corev1.PodFailed && now.Status.Phase != corev1.PodSucceeded {
				return fmt.Errorf("pod: %s", scene.Describe(now))
			}
			if !slices.ContainsFunc(symptomOf(s, v, p.Name).Events,
				func(e string) bool { return strings.HasPrefix(e, "Warning ") }) {
				return fmt.Errorf("no warning yet")
			}
			return nil
		})
	}
	all := comeTo(s, recorded, func(v record.View) map[string]rejection {
		all := map[string]rejection{}
		for _, p := range slices.Concat(pods, victims) {
			now := v.Pod(s.Namespace, p.Name)
			if now == nil {
				continue
			}
			shown := symptomOf(s, v, p.Name)
			for i := range shown.Events {
				shown.Events[i] = amounts.ReplaceAllString(shown.Events[i], "$1: <n>")
			}
			all[p.Name] = rejection{now.Status.Reason, amounts.ReplaceAllString(now.Status.Message, "$1: <n>"), shown}
		}
		return all
	})
	w.Untouched()
	return all
}

// amounts are a machine's own.
var amounts = regexp.MustCompile(`\b(used|capacity): [0-9]+`)

// TestAdmission compares what rejected and preempted pods show with what the real kubelet shows.
func TestAdmission(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	recorded := readRecorded[map[string]rejection](t, goldenRejections)
	if diff := cmp.Diff(recorded, rejections(t, recorded)); diff != "" {
		t.Errorf("what rejected pods show (-kubelet +microlet):\n%s", diff)
	}
}

// TestForeignPodsStayOut has a pod ask for the folder of the sockets and keys.
func TestForeignPodsStayOut(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	p := bound(s, scene.PausePod("nosy"))
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "agent",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.RuntimeDir() + "/nkeys"}},
	}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "agent", MountPath: "/agent"}}
	s.CreatePods(p)
	s.Wait(scene.Patience, "the rejection of a pod that mounts the runtime folder", func(v record.View) error {
		if p := v.Pod(s.Namespace, "nosy"); p == nil || p.Status.Reason != "HelperForbidden" ||
			len(p.Status.ContainerStatuses) != 0 {
			return fmt.Errorf("it is %s", scene.Describe(p))
		}
		return nil
	})
}
