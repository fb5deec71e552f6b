package explanation

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/testing/golden"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// state is what podsync knows of a pod, as the tests change it.
type state struct {
	*podsyncv1.PodExplanation
	status v1.PodStatus
}

// at is a time of the node, relative to when it was asked.
func at(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }

// started is an admitted pod with a sandbox and one container that waits for what the pod lacks.
func started() *state {
	return &state{
		PodExplanation: &podsyncv1.PodExplanation{
			Namespace: "shop", Name: "web", Uid: "1", Source: podsyncv1.PodSource_POD_SOURCE_API, Phase: "sync",
			Admission: &podsyncv1.Admission{State: podsyncv1.Admission_STATE_ADMITTED},
			Sync:      &podsyncv1.PodSync{Next: at(10 * time.Second)},
			Sandbox:   &podsyncv1.Sandbox{Id: "0123456789abcdef", Ready: true, Ips: []string{"10.88.0.7"}},
			Containers: []*podsyncv1.ContainerExplanation{
				{Name: "web", Type: podsyncv1.ContainerExplanation_TYPE_CONTAINER, Image: "shop/web:1"},
			},
			Now: timestamppb.New(now),
		},
		status: v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{
			{Name: "web", State: waiting("ContainerCreating", "")},
		}},
	}
}

func waiting(reason, message string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func ended(code int32, reason string) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: metav1.NewTime(now.Add(-5 * time.Second)),
		FinishedAt: metav1.NewTime(now.Add(-2 * time.Second)),
	}
}

// runs has the container run.
func (s *state) runs() {
	s.status.Phase = v1.PodRunning
	s.status.ContainerStatuses[0].State = v1.ContainerState{
		Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Minute))},
	}
}

func (s *state) waits(reason, message string) {
	s.status.ContainerStatuses[0].State = waiting(reason, message)
}

func (s *state) rejected(reason, message string) {
	s.Admission = &podsyncv1.Admission{State: podsyncv1.Admission_STATE_REJECTED, Reason: reason, Message: message}
	s.status = v1.PodStatus{Phase: v1.PodFailed, Reason: reason, Message: "Pod was rejected: " + message}
}

func (s *state) fails(step, err string) { s.Sync.FailedStep, s.Sync.Error = step, err }

func (s *state) volume(kind string, in podsyncv1.VolumeState_State, message string) {
	s.Sandbox = nil
	s.Volumes = []*podsyncv1.VolumeState{
		{Name: "scratch", Kind: "emptyDir", State: podsyncv1.VolumeState_STATE_PENDING},
		{Name: "data", Kind: kind, State: in, Message: message, Began: at(-time.Minute)},
	}
}

func (s *state) probe(kind string, result podsyncv1.ProbeState_Result) {
	s.runs()
	s.Containers[0].Probes = []*podsyncv1.ProbeState{{Kind: kind, Target: "httpGet :8080/healthz", Result: result}}
}

// init puts an init container before the container.
func (s *state) init(state v1.ContainerState) {
	s.Containers = append([]*podsyncv1.ContainerExplanation{
		{Name: "prepare", Type: podsyncv1.ContainerExplanation_TYPE_INIT, Image: "shop/prepare:1"},
	}, s.Containers...)
	s.status.InitContainerStatuses = []v1.ContainerStatus{{Name: "prepare", State: state}}
	s.waits("PodInitializing", "")
}

// broken are pods that do not run, each with what keeps it.
var broken = []struct {
	name    string
	change  func(s *state)
	part    string
	reason  string
	message string
}{
	{"not enough cpu", func(s *state) { s.rejected("OutOfcpu", "Node didn't have enough resource: cpu") }, "admission",
		"OutOfcpu", "enough resource: cpu"},
	{"host port taken", func(s *state) { s.rejected("NodePorts", "node(s) didn't have free ports") }, "admission",
		"NodePorts", "free ports"},
	{"unsafe sysctl", func(s *state) { s.rejected("SysctlForbidden", `forbidden sysctl: "kernel.x"`) }, "admission",
		"SysctlForbidden", "kernel.x"},
	{"node agent's folder", func(s *state) { s.rejected("HelperForbidden", "mounts /run/microlet") }, "admission",
		"HelperForbidden", "/run/microlet"},
	{"undecided", func(s *state) { s.Admission.State = podsyncv1.Admission_STATE_PENDING }, "admission",
		"NotAdmittedYet", "waits for the pod's source"},
	{"runtime away before the admission", func(s *state) {
		s.Admission.State = podsyncv1.Admission_STATE_PENDING
		s.fails("read the pod's state", "connection refused")
	}, "admission", "NotAdmittedYet", "connection refused"},
	{"static pod of the same name", func(s *state) {
		s.Phase, s.Admission.State = "held", podsyncv1.Admission_STATE_PENDING
	}, "source", "NameInUse", "has not ended"},
	{"refused field", func(s *state) { s.RefusedFields = []string{"spec.hostUsers"} }, "fields/spec.hostUsers",
		"UnsupportedField", "does not support it"},
	{"evicted", func(s *state) {
		s.status.Phase, s.status.Reason, s.status.Message = v1.PodFailed, "Evicted", "The node was low on resource: memory."
	}, "end", "Evicted", "low on resource: memory"},
	{"deadline", func(s *state) {
		s.status.Phase, s.status.Reason, s.status.Message = v1.PodFailed, "DeadlineExceeded", "active longer than"
	}, "end", "DeadlineExceeded", "active longer than"},
	{"being deleted", func(s *state) { s.Phase = "terminating" }, "end", "Terminating", "being stopped"},
	{"no network", func(s *state) {
		s.Sandbox = nil
		s.fails("start the pod", "network is not ready: cni plugin not initialized")
	}, "sync", "NetworkNotReady", "cni plugin not initialized"},
	{"runtime away", func(s *state) {
		s.Sandbox = nil
		s.fails("read the pod's state", "connection refused")
	}, "sync", "FailedSync", "connection refused; next try in 10s"},
	{"cgroup", func(s *state) {
		s.Sandbox = nil
		s.fails("make the pod's cgroup", "no space left on device")
	}, "sync", "FailedToCreatePodContainer", "no space left"},
	{"sandbox refused", func(s *state) {
		s.Sandbox = nil
		s.fails("create the sandbox", "plugin type=\"bridge\" failed")
	}, "sandbox", "FailedCreatePodSandBox", "bridge"},
	{"runtime class", func(s *state) {
		s.Sandbox = nil
		s.fails("find the runtime class", `runtimeclass "gvisor" not found`)
	}, "sandbox", "FailedCreatePodSandBox", "gvisor"},
	{"missing config map", func(s *state) {
		s.volume("configMap", podsyncv1.VolumeState_STATE_FAILED, `configmap "settings" not found`)
		s.fails("mount volumes", `configmap "settings" not found`)
	}, "volumes/data", "FailedMount", `configmap "settings" not found; next try in 10s`},
	{"missing secret", func(s *state) {
		s.volume("secret", podsyncv1.VolumeState_STATE_FAILED, `secret "token" not found`)
		s.fails("mount volumes", `secret "token" not found`)
	}, "volumes/data", "FailedMount", `secret: secret "token" not found`},
	{"host path of another type", func(s *state) {
		s.volume("hostPath", podsyncv1.VolumeState_STATE_FAILED, "hostPath type check failed: /x is not a directory")
		s.fails("mount volumes", "hostPath type check failed")
	}, "volumes/data", "FailedMount", "is not a directory"},
	{"file system that does not answer", func(s *state) {
		s.volume("hostPath", podsyncv1.VolumeState_STATE_MOUNTING, "")
	}, "volumes/data", "Mounting", "being mounted for 1m0s"},
	{"image that is not there", func(s *state) {
		s.waits("ImagePullBackOff", "Back-off pulling image")
		s.Containers[0].NextPull, s.Containers[0].PullError = at(40*time.Second), "ErrImagePull: not found"
		s.fails("image of container web", "ErrImagePull: not found")
	}, "containers/web", "ImagePullBackOff", "ErrImagePull: not found; next try in 40s"},
	{"image being pulled", func(s *state) { s.Containers[0].PullBegan = at(-90 * time.Second) }, "containers/web",
		"Pulling", "image shop/web:1 is being pulled for 1m30s"},
	{"image of a volume being pulled", func(s *state) {
		s.Containers[0].PullBegan, s.Containers[0].PullImage = at(-90*time.Second), "shop/catalog:1"
	}, "containers/web", "Pulling", "image shop/catalog:1 is being pulled for 1m30s"},
	{"never pull", func(s *state) { s.waits("ErrImageNeverPull", "not present with pull policy of Never") },
		"containers/web", "ErrImageNeverPull", "policy of Never"},
	{"invalid image name", func(s *state) { s.waits("InvalidImageName", `couldn't parse image name "X"`) },
		"containers/web", "InvalidImageName", "couldn't parse"},
	{"missing key of a config map", func(s *state) {
		s.waits("CreateContainerConfigError", "couldn't find key port in ConfigMap shop/settings")
	}, "containers/web", "CreateContainerConfigError", "key port"},
	{"runtime refuses the container", func(s *state) { s.waits("CreateContainerError", "invalid mount") },
		"containers/web", "CreateContainerError", "invalid mount"},
	{"command that is not there", func(s *state) {
		s.waits("RunContainerError", `exec: "nothing": executable file not found in $PATH`)
	}, "containers/web", "RunContainerError", "executable file not found"},
	{"crash loop", func(s *state) {
		s.waits("CrashLoopBackOff", "back-off 40s restarting failed container")
		s.status.ContainerStatuses[0].RestartCount = 4
		s.status.ContainerStatuses[0].LastTerminationState.Terminated = ended(3, "Error")
		s.Containers[0].RestartAt = at(25 * time.Second)
	}, "containers/web", "CrashLoopBackOff", "it ended with exit code 3 after 3s; next start in 25s; restarts: 4"},
	{"out of memory", func(s *state) {
		s.waits("CrashLoopBackOff", "back-off 40s restarting failed container")
		s.status.ContainerStatuses[0].LastTerminationState.Terminated = ended(137, "OOMKilled")
	}, "containers/web", "CrashLoopBackOff", "exit code 137 (OOMKilled)"},
	{"ended with an error", func(s *state) {
		s.status.Phase = v1.PodFailed
		s.status.ContainerStatuses[0].State = v1.ContainerState{Terminated: ended(2, "Error")}
	}, "containers/web", "Error", "exit code 2"},
	{"init container crashes", func(s *state) { s.init(waiting("CrashLoopBackOff", "back-off")) },
		"containers/prepare (init container)", "CrashLoopBackOff", "restarts: 0"},
	{"init container does not end", func(s *state) {
		s.init(v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))}})
	}, "containers/prepare (init container)", "PodInitializing", "running for 1h0m0s"},
	{"readiness probe fails", func(s *state) { s.probe("readiness", podsyncv1.ProbeState_RESULT_FAILURE) },
		"containers/web/readiness probe", "Unhealthy", "httpGet :8080/healthz: fails"},
	{"startup probe has not succeeded", func(s *state) { s.probe("startup", podsyncv1.ProbeState_RESULT_UNKNOWN) },
		"containers/web/startup probe", "NotStarted", "has not succeeded yet"},
	{"readiness gate", func(s *state) {
		s.runs()
		s.status.Conditions = []v1.PodCondition{{
			Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: "gate missing",
		}}
	}, "readiness gates", "ReadinessGatesNotReady", "gate missing"},
}

func (s *state) explain(t *testing.T) *Explanation {
	t.Helper()
	var err error
	if s.Status, err = s.status.Marshal(); err != nil {
		t.Fatal(err)
	}
	x, err := Of(s.PodExplanation)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestTheCauseIsNamed(t *testing.T) {
	for _, c := range broken {
		s := started()
		c.change(s)
		x := s.explain(t)
		if len(x.Causes) != 1 {
			t.Errorf("%s: %d causes, want one: %+v", c.name, len(x.Causes), x.Causes)
			continue
		}
		got := x.Causes[0]
		if got.Part != c.part || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: %+v, want part %q, reason %q, message %q", c.name, got, c.part, c.reason, c.message)
		}
		if x.Verdict == "running" || x.Verdict == "succeeded" {
			t.Errorf("%s: the pod is said to be %s", c.name, x.Verdict)
		}
	}
}

// What a person reads, for all of them.
func TestTheTree(t *testing.T) {
	var out bytes.Buffer
	for _, c := range broken {
		s := started()
		c.change(s)
		out.WriteString("# " + c.name + "\n")
		if err := s.explain(t).Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	golden.Check(t, "testdata/broken.txt", out.String())
}

func TestAPodThatRunsHasNoCause(t *testing.T) {
	s := started()
	s.runs()
	s.Volumes = []*podsyncv1.VolumeState{{Name: "data", Kind: "emptyDir", State: podsyncv1.VolumeState_STATE_MOUNTED}}
	s.probe("readiness", podsyncv1.ProbeState_RESULT_SUCCESS)
	s.init(v1.ContainerState{Terminated: ended(0, "Completed")})
	s.runs()
	if x := s.explain(t); x.Verdict != "running" || len(x.Causes) != 0 {
		t.Errorf("explained as %+v", x)
	}
	s.status.Phase = v1.PodSucceeded
	s.status.ContainerStatuses[0].State = v1.ContainerState{Terminated: ended(0, "Completed")}
	if x := s.explain(t); x.Verdict != "succeeded" || len(x.Causes) != 0 {
		t.Errorf("explained as %+v", x)
	}
}

// A container may write what it likes into its termination message.
func TestAMessageCannotDriveTheTerminal(t *testing.T) {
	s := started()
	s.waits("RunContainerError", "\x1b[2J\x1b]0;title\a first\nsecond\u009b1m")
	var out bytes.Buffer
	if err := s.explain(t).Write(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\a\u009b") || !strings.Contains(got, "first second") {
		t.Errorf("%q", got)
	}
}

func TestAStatusThatCannotBeDecoded(t *testing.T) {
	if _, err := Of(&podsyncv1.PodExplanation{Namespace: "shop", Name: "web", Status: []byte{0xff}}); err == nil ||
		!strings.Contains(err.Error(), "shop/web") {
		t.Errorf("error %v", err)
	}
}
