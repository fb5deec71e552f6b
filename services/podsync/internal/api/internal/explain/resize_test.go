package explain

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/allocation"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

// cpu has a CPU request and, if it is not empty, a limit.
func cpu(request, limit string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(request)}}
	if limit != "" {
		r.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}
	}
	return r
}

func only(container string, r v1.ResourceRequirements) pod.Resources {
	return pod.Resources{Containers: map[string]v1.ResourceRequirements{container: r}}
}

func TestResize(t *testing.T) {
	whole := pod.Resources{
		Containers: map[string]v1.ResourceRequirements{"main": cpu("1", "")}, Pod: new(cpu("1", "4")),
	}
	inherits := only("main", cpu("1", "4")) // the limit is that of the pod as a whole
	inherits.Pod = new(cpu("1", "4"))
	larger := whole
	larger.Pod = new(cpu("2", "4"))
	for _, test := range []struct {
		name string
		from allocation.Explanation
		want *podsyncv1.Resize
	}{
		{"not admitted", allocation.Explanation{Desired: only("main", cpu("1", ""))}, nil},
		{"nothing differs", allocation.Explanation{
			Desired: only("main", cpu("1000m", "2")), Granted: new(only("main", cpu("1", "2"))),
			Actuated: new(only("main", cpu("1", "2")))}, nil},
		{"what was given is unknown", allocation.Explanation{
			Desired: only("main", cpu("1", "2")), Granted: new(only("main", cpu("1", "2")))}, nil},
		{"not granted", allocation.Explanation{
			Desired: only("main", cpu("3", "2")), Granted: new(only("main", cpu("1", "2"))),
			Actuated:  new(only("main", cpu("1", "2"))),
			Pending:   &v1.PodCondition{Reason: "Deferred", Message: "no room"},
			Unwritten: errors.New("disk full")},
			&podsyncv1.Resize{PendingReason: "Deferred", PendingMessage: "no room", Unwritten: "disk full",
				Amounts: []*podsyncv1.ResourceAmount{
					{Container: "main", Field: "requests.cpu", Desired: "3", Allocated: "1", Actuated: new("1")}}}},
		{"being decided", allocation.Explanation{
			Desired: only("main", cpu("1", "3")), Granted: new(only("main", cpu("1", ""))), Deciding: true},
			&podsyncv1.Resize{Deciding: true, Amounts: []*podsyncv1.ResourceAmount{
				{Container: "main", Field: "limits.cpu", Desired: "3"}}}},
		{"granted and not given", allocation.Explanation{
			Desired: only("main", cpu("1", "")), Granted: new(only("main", cpu("1", ""))),
			Actuated: new(only("main", cpu("1", "2"))), InProgress: &v1.PodCondition{Message: "the runtime is away"}},
			&podsyncv1.Resize{InProgress: true, Error: "the runtime is away", Amounts: []*podsyncv1.ResourceAmount{
				{Container: "main", Field: "limits.cpu", Actuated: new("2")}}}},
		{"a container that does not run", allocation.Explanation{
			Desired: only("first", cpu("1", "")), Granted: new(only("first", cpu("1", ""))),
			Actuated: new(only("first", cpu("9", "")))}, nil},
		{"the pod as a whole", allocation.Explanation{Desired: larger, Granted: &whole, Actuated: &inherits},
			&podsyncv1.Resize{Amounts: []*podsyncv1.ResourceAmount{
				{Field: "requests.cpu", Desired: "2", Allocated: "1", Actuated: new("1")}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := &node{
				standings: []pods.Standing{{Pod: podOf("web"), State: &pod.State{Containers: []pod.Container{
					{Name: "main", State: runtimeapi.ContainerState_CONTAINER_RUNNING},
					{Name: "first", State: runtimeapi.ContainerState_CONTAINER_EXITED},
				}}}},
				resources: map[types.UID]allocation.Explanation{"uid-web": test.from},
			}
			if diff := cmp.Diff(test.want, n.explain(t, "web").GetResize(), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
