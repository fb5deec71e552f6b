package eventref

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReferences(t *testing.T) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1", ResourceVersion: "7"},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "i"}},
			Containers:     []v1.Container{{Name: "c"}},
			EphemeralContainers: []v1.EphemeralContainer{{
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"},
			}},
		},
	}
	want := v1.ObjectReference{
		Kind:            "Pod",
		APIVersion:      "v1",
		Namespace:       "shop",
		Name:            "web",
		UID:             "u1",
		ResourceVersion: "7",
	}
	if got := Pod(p); *got != want {
		t.Errorf("pod %+v, want %+v", got, want)
	}
	for name, path := range map[string]string{
		"i": "spec.initContainers{i}",
		"c": "spec.containers{c}",
		"e": "spec.ephemeralContainers{e}",
	} {
		want.FieldPath = path
		if got := Container(p, name); *got != want {
			t.Errorf("container %s: %+v, want %+v", name, got, want)
		}
	}
	if got, want := *Node("n1"), (v1.ObjectReference{Kind: "Node", Name: "n1", UID: "n1"}); got != want {
		t.Errorf("node %+v, want %+v", got, want)
	}
}
