package test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
)

// TestAllocatedPods: /pods has what a pod asks for, and /allocatedPods what it was granted.
func TestAllocatedPods(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.kubelet().FeatureGates = map[string]bool{"KubeletAllocatedPodsEndpoint": true}
	e.startPodsync()
	e.start()
	spec := func(cpu string) v1.PodSpec {
		r := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
		return v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "image", Resources: r}}}
	}
	granted, desired := spec("11m"), spec("22m")
	p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "resized", UID: "resized-uid"}, Spec: granted}
	e.pods.Put(subject.PodKey(string(p.UID)), &podsyncv1.Pod{Pod: marshal(t, &p), Desired: marshal(t, &desired)})
	e.status.Put(subject.PodKey(string(p.UID)),
		&podsyncv1.PodStatus{Status: marshal(t, &v1.PodStatus{Phase: v1.PodRunning})})

	jane := e.user("jane get_pods")
	jane.awaitGet(slack, "/allocatedPods/ns/resized", 200)
	has := func(path, amount, not string) {
		t.Helper()
		expect(t, slack, path, func() (int, string) {
			code, body := jane.get(path)
			if strings.Contains(body, not) {
				t.Errorf("%s has %s: %s", path, not, body)
			}
			return code, body
		}, 200, amount)
	}
	has("/pods", `"cpu":"22m"`, `"cpu":"11m"`)
	has("/allocatedPods", `"cpu":"11m"`, `"cpu":"22m"`)
	has("/allocatedPods/ns/resized", `"cpu":"11m"`, `"phase"`)
	has("/allocatedPods/ns/resized/resized-uid", `"cpu":"11m"`, `"cpu":"22m"`)
	expect(t, soon, "another UID", func() (int, string) { return jane.get("/allocatedPods/ns/resized/other") }, 404, "")
	expect(t, soon, "a caller without rights", func() (int, string) {
		return e.user("joe").get("/allocatedPods")
	}, 403, "")
}

func marshal(t *testing.T, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
