package explain

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/allocation"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

const api = podsyncv1.PodSource_POD_SOURCE_API

// node stands in for podsync.
type node struct {
	standings, held []pods.Standing
	unsynced        []podsyncv1.PodSource
	statuses        map[types.UID]v1.PodStatus
	results         decide.Results
	backOff         map[string]time.Time
	judged          admission.Result
	resources       map[types.UID]allocation.Explanation
}

func (n *node) Explain(uid types.UID) (e allocation.Explanation, known bool) {
	e, known = n.resources[uid]
	return
}

func (n *node) Standings() []pods.Standing                          { return n.standings }
func (n *node) Held(context.Context) ([]pods.Standing, error)       { return n.held, nil }
func (n *node) Unsynced() []podsyncv1.PodSource                     { return n.unsynced }
func (n *node) Of(types.UID) decide.Results                         { return n.results }
func (n *node) Judge(context.Context, *v1.Pod) (v admission.Result) { return n.judged }
func (n *node) Last(uid types.UID) (s v1.PodStatus, reported bool) {
	s, reported = n.statuses[uid]
	return
}
func (n *node) BackOff(_ types.UID, i string) (time.Time, string, bool) {
	until, ok := n.backOff[i]
	return until, "no such host", ok
}

func (n *node) server() *Server {
	return &Server{d: Deps{
		NodeName: "node", Sources: []podsyncv1.PodSource{api, podsyncv1.PodSource_POD_SOURCE_FILE}, Workers: n,
		Dispatcher: n, Statuses: n, Probes: n, Pulls: n, Judge: n, Allocation: n,
	}}
}

func podOf(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "first", Image: "i"}},
			Containers: []v1.Container{{
				Name: "main", Image: "gone:1", Env: []v1.EnvVar{{Name: "TOKEN", Value: "s3cret"}},
				ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
					Scheme: v1.URISchemeHTTP, Path: "/ready?token=s3cret"}}},
				LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{
					Command: []string{"check", "s3cret"}}}},
			}},
			Volumes: []v1.Volume{
				{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}},
				{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
		},
	}
}

func (n *node) explain(t *testing.T, name string) *podsyncv1.PodExplanation {
	t.Helper()
	answer, err := n.server().ExplainPod(t.Context(), &podsyncv1.ExplainPodRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetPod()
}

func TestAPodThatWaitsForAVolumeAndAnImage(t *testing.T) {
	until := time.Now().Add(time.Minute)
	n := &node{
		standings: []pods.Standing{{
			Pod: podOf("web"), Source: api, Phase: "sync", Admitted: true, FailedStep: "mount volumes",
			NotMounted: map[string]string{"settings": `configmap "settings" not found`},
			Pulling:    map[string]pods.Pulling{"first": {Image: "artifact:1", Began: time.Now()}},
			Waits:      []decide.Wait{{Name: "main", Until: until}},
			State:      &pod.State{Sandboxes: []pod.Sandbox{{ID: "box", Attempt: 2}}},
		}},
		backOff:  map[string]time.Time{"gone:1": until},
		statuses: map[types.UID]v1.PodStatus{"uid-web": {Phase: v1.PodPending}},
	}
	e := n.explain(t, "web")
	if e.GetAdmission().GetState() != podsyncv1.Admission_STATE_ADMITTED || e.GetSandbox().GetAttempt() != 2 ||
		e.GetSync().GetFailedStep() != "mount volumes" || len(e.GetStatus()) == 0 {
		t.Errorf("explained as %v", e)
	}
	v := e.GetVolumes()
	if len(v) != 2 || v[0].GetKind() != "configMap" || v[0].GetState() != podsyncv1.VolumeState_STATE_FAILED ||
		v[0].GetMessage() != `configmap "settings" not found` ||
		v[1].GetState() != podsyncv1.VolumeState_STATE_PENDING {
		t.Errorf("volumes: %v", v)
	}
	c := e.GetContainers()
	if len(c) != 2 || c[0].GetType() != podsyncv1.ContainerExplanation_TYPE_INIT || c[0].GetPullBegan() == nil ||
		c[0].GetPullImage() != "artifact:1" ||
		!c[1].GetNextPull().AsTime().Equal(until) || c[1].GetPullError() != "no such host" ||
		!c[1].GetRestartAt().AsTime().Equal(until) {
		t.Errorf("containers: %v", c)
	}
}

func TestVolumesAreMountedOnceAContainerWasCreated(t *testing.T) {
	n := &node{standings: []pods.Standing{{
		Pod: podOf("web"), State: &pod.State{Containers: []pod.Container{{ID: "1", Name: "main"}}},
	}}}
	for _, v := range n.explain(t, "uid-web").GetVolumes() {
		if v.GetState() != podsyncv1.VolumeState_STATE_MOUNTED {
			t.Errorf("volume: %v", v)
		}
	}
}

func TestProbesAreThoseOfTheNewestInstance(t *testing.T) {
	n := &node{
		standings: []pods.Standing{{
			Pod:   podOf("web"),
			State: &pod.State{Containers: []pod.Container{{ID: "new", Name: "main"}, {ID: "old", Name: "main"}}},
		}},
		results: decide.Results{
			Readiness: map[string]decide.Result{"new": decide.Failure, "old": decide.Success},
			Liveness:  map[string]decide.Result{"old": decide.Failure},
		},
	}
	got := n.explain(t, "web").GetContainers()[1].GetProbes()
	if len(got) != 2 || got[0].GetTarget() != "httpGet :0/ready" ||
		got[0].GetResult() != podsyncv1.ProbeState_RESULT_FAILURE || got[1].GetTarget() != "exec" ||
		got[1].GetResult() != podsyncv1.ProbeState_RESULT_UNKNOWN {
		t.Errorf("probes: %v", got)
	}
}

// An explanation, for example in a report of a bug, must not contain what the pod keeps secret.
func TestAnExplanationHoldsNoEnvironmentOrCommand(t *testing.T) {
	n := &node{standings: []pods.Standing{{Pod: podOf("web")}}}
	if text := n.explain(t, "web").String(); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
}

func TestAdmissionStates(t *testing.T) {
	ended, deleted := podOf("a"), podOf("a")
	ended.Status.Phase = v1.PodFailed
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, c := range []struct {
		standing pods.Standing
		want     podsyncv1.Admission_State
	}{
		{pods.Standing{Pod: podOf("a")}, podsyncv1.Admission_STATE_PENDING},
		{pods.Standing{Pod: podOf("a"), Admitted: true}, podsyncv1.Admission_STATE_ADMITTED},
		{pods.Standing{Pod: ended}, podsyncv1.Admission_STATE_ADMITTED},
		{pods.Standing{Pod: deleted}, podsyncv1.Admission_STATE_ADMITTED},
		{pods.Standing{Pod: podOf("a"), Rejection: &admission.Result{Reason: "NodePorts"}},
			podsyncv1.Admission_STATE_REJECTED},
	} {
		if got := admissionOf(&c.standing).GetState(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.standing, got, c.want)
		}
	}
}

func TestAPodThatIsNotKnown(t *testing.T) {
	other := podOf("web")
	other.Namespace = "shop"
	for _, c := range []struct {
		node node
		name string
		code codes.Code
		want string
	}{
		{node{}, "web", codes.NotFound, "no source has pod default/web for this node, node"},
		{node{standings: []pods.Standing{{Pod: other}}}, "web", codes.NotFound, "but in shop: give --namespace"},
		{node{unsynced: []podsyncv1.PodSource{api}}, "web", codes.NotFound, "these are missing: api"},
		{node{}, "", codes.InvalidArgument, "name is empty"},
	} {
		_, err := c.node.server().ExplainPod(t.Context(), &podsyncv1.ExplainPodRequest{Name: c.name})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %v with %q", c.name, err, c.code, c.want)
		}
	}
}

func TestAStaticPodIsFoundByItsNameInTheManifest(t *testing.T) {
	n := &node{held: []pods.Standing{{Pod: podOf("web-node"), Phase: pods.Held}}}
	if got := n.explain(t, "web"); got.GetPhase() != "held" || got.GetName() != "web-node" {
		t.Errorf("explained as %v", got)
	}
}

func TestTheListHasAStatusForEachPod(t *testing.T) {
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}
	deleted := podOf("f")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	n := &node{
		unsynced: []podsyncv1.PodSource{api},
		standings: []pods.Standing{
			{Pod: deleted}, {Pod: podOf("e")}, {Pod: podOf("d")}, {Pod: podOf("c")}, {Pod: podOf("b")}, {Pod: podOf("a")},
		},
		held: []pods.Standing{{Pod: podOf("g"), Phase: pods.Held}},
		statuses: map[types.UID]v1.PodStatus{
			"uid-a": {ContainerStatuses: []v1.ContainerStatus{{State: waiting("ErrImagePull"), RestartCount: 3}}},
			"uid-b": {InitContainerStatuses: []v1.ContainerStatus{{State: waiting("CrashLoopBackOff")}}},
			"uid-c": {Phase: v1.PodFailed, Reason: "Evicted"},
			"uid-d": {Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Ready: true}}, PodIP: "10.0.0.9"},
			"uid-f": {Phase: v1.PodRunning}, "uid-h": {InitContainerStatuses: []v1.ContainerStatus{{State: ended}}},
		},
	}
	answer, err := n.server().ListPods(t.Context(), &podsyncv1.ListPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ErrImagePull", "Init:CrashLoopBackOff", "Evicted", "Running", "Pending", "Terminating", "Held"}
	for i, p := range answer.GetPods() {
		if p.GetStatus() != want[i] {
			t.Errorf("pod %s is %q, want %q", p.GetName(), p.GetStatus(), want[i])
		}
	}
	if d := answer.GetPods()[3]; d.GetReadyContainers() != 1 || d.GetPodIp() != "10.0.0.9" ||
		answer.GetPods()[0].GetRestarts() != 3 {
		t.Errorf("row: %v", d)
	}
	if s := answer.GetSources(); len(s) != 2 || s[0].GetSynced() || !s[1].GetSynced() {
		t.Errorf("sources: %v", s)
	}
}

func TestCheckPod(t *testing.T) {
	const (
		head     = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: i}]\n"
		token    = "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: token}}]}}]\n"
		debugged = "  ephemeralContainers: [{name: d, image: i}]\n"
		gated    = "  schedulingGates: [{name: example.com/gate}]\n"
	)
	for _, c := range []struct {
		name, manifest string
		static         bool
		judged         admission.Result
		want           string
	}{
		{"good", head, false, admission.Result{}, `state:STATE_ADMITTED`},
		{"a secret for a pod of the API", head + "  imagePullSecrets: [{name: s}]\n", false, admission.Result{},
			"state:STATE_ADMITTED"},
		{"a secret for a static pod", head + "  imagePullSecrets: [{name: s}]\n", true, admission.Result{},
			"spec.imagePullSecrets[0]"},
		{"a token, as the API server gives one to each pod", head + token, false, admission.Result{}, `state:STATE_ADMITTED`},
		{"a token for a static pod", head + token, true, admission.Result{}, "serviceAccountToken"},
		{"a pod that is debugged", head + debugged, false, admission.Result{}, `state:STATE_ADMITTED`},
		{"a static pod that is debugged", head + debugged, true, admission.Result{}, "spec.ephemeralContainers"},
		{"a pod with a gate", head + gated, false, admission.Result{}, `state:STATE_ADMITTED`},
		{"a static pod with a gate", head + gated, true, admission.Result{}, "remove spec.schedulingGates"},
		{"an unknown field", head + "  hostNetwerk: true\n", false, admission.Result{}, "hostNetwerk"},
		{"a field that is not built",
			head + "  volumes: [{name: v, iscsi: {targetPortal: a, iqn: iqn.2001-04.a:b, lun: 1}}]\n", false, admission.Result{}, `refused_fields:"spec.volumes[0].iscsi"`},
		{"no room", head, false, admission.Result{Reason: "OutOfcpu", Message: "not enough"}, `reason:"OutOfcpu"`},
		{"no pod", "kind: Deployment\napiVersion: apps/v1\n", false, admission.Result{}, "only pods can be run"},
	} {
		n := &node{judged: c.judged}
		answer, err := n.server().CheckPod(t.Context(),
			&podsyncv1.CheckPodRequest{Manifest: []byte(c.manifest), Static: c.static})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(answer.String(), "  ", " "); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s lacks %q", c.name, got, c.want)
		}
	}
}
