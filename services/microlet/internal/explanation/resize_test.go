package explanation

import (
	"bytes"
	"testing"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/testing/golden"
)

// resized are pods that run and have other resources than they ask for.
var resized = []struct {
	name   string
	resize *podsyncv1.Resize
	want   State
}{
	{"no room", &podsyncv1.Resize{
		PendingReason: "Deferred", PendingMessage: "Node didn't have enough resource: cpu",
		Amounts: []*podsyncv1.ResourceAmount{
			{Container: "web", Field: "requests.cpu", Desired: "2", Allocated: "1", Actuated: new("1")},
			{Container: "web", Field: "limits.cpu", Desired: "2", Actuated: new("")},
		},
	}, Waiting},
	{"never", &podsyncv1.Resize{
		PendingReason: "Infeasible", PendingMessage: "In-place resize of containers with swap is not supported.",
		Amounts: []*podsyncv1.ResourceAmount{{Field: "requests.memory", Desired: "2Gi", Allocated: "1Gi"}},
	}, Failed},
	{"undecided", &podsyncv1.Resize{Deciding: true, Amounts: []*podsyncv1.ResourceAmount{
		{Container: "web", Field: "limits.memory", Allocated: "1Gi", Actuated: new("1Gi")}}}, Waiting},
	{"not looked at", &podsyncv1.Resize{Amounts: []*podsyncv1.ResourceAmount{
		{Container: "web", Field: "limits.memory", Desired: "1Gi", Allocated: "2Gi", Actuated: new("2Gi")}}}, Waiting},
	{"granted a moment ago", &podsyncv1.Resize{Amounts: []*podsyncv1.ResourceAmount{
		{Container: "web", Field: "limits.memory", Desired: "1Gi", Allocated: "1Gi", Actuated: new("2Gi")}}}, Waiting},
	{"carried out", &podsyncv1.Resize{InProgress: true, Amounts: []*podsyncv1.ResourceAmount{
		{Container: "web", Field: "limits.memory", Desired: "1Gi", Allocated: "1Gi", Actuated: new("2Gi")}}}, Waiting},
	{"not carried out, and asks for more", &podsyncv1.Resize{
		InProgress: true, Error: "the runtime is away", PendingReason: "Deferred", PendingMessage: "no room",
		Unwritten: "write allocated_pods_state: no space left on device",
	}, Failed},
}

func TestResources(t *testing.T) {
	var out bytes.Buffer
	for _, test := range resized {
		s := started()
		s.runs()
		s.Resize = test.resize
		x := s.explain(t)
		if x.Verdict != "running" || len(x.Causes) != 0 {
			t.Errorf("%s: a pod that runs is said to be %s, because %+v", test.name, x.Verdict, x.Causes)
		}
		last := x.Parts[len(x.Parts)-1]
		if last.Name != "resources" || last.State != test.want || last.Reason == "" || last.Message == "" {
			t.Errorf("%s: %+v", test.name, last)
		}
		out.WriteString("# " + test.name + "\n")
		if err := x.Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	golden.Check(t, "testdata/resized.txt", out.String())
}

// TestAResizeIsNoCause of what keeps a pod from running.
func TestAResizeIsNoCause(t *testing.T) {
	s := started()
	s.waits("CrashLoopBackOff", "back-off 10s restarting failed container")
	s.Resize = resized[1].resize
	if x := s.explain(t); len(x.Causes) != 1 || x.Causes[0].Part != "containers/web" ||
		s.status.Phase != v1.PodPending {
		t.Errorf("causes are %+v", x.Causes)
	}
}
