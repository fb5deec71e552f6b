package containers

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func thePod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u"},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "sidecar"}},
			Containers:     []v1.Container{{Name: "main", Image: "one"}},
			EphemeralContainers: []v1.EphemeralContainer{{
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"},
			}},
		},
	}
}

func state(containers ...pod.Container) *pod.State {
	return &pod.State{UID: "u", Containers: containers}
}

func TestFind(t *testing.T) {
	var x Index
	found := func(id string) string {
		p, c, ok := x.Find(id)
		if !ok {
			return ""
		}
		return p.Name + "/" + c.Name + "/" + c.Image
	}
	is := func(when string, want map[string]string) {
		t.Helper()
		for id, name := range want {
			if got := found(id); got != name {
				t.Errorf("%s: %q is %q, want %q", when, id, got, name)
			}
		}
	}
	x.SetState("u", state(pod.Container{ID: "m1", Name: "main"}))
	is("a state without a pod", map[string]string{"m1": ""})
	x.SetPod(thePod())
	is("a pod without a state", map[string]string{"m1": "", "": ""})
	x.SetState("u", state(pod.Container{ID: "m2", Name: "main"}, pod.Container{ID: "m1", Name: "main"},
		pod.Container{ID: "s1", Name: "sidecar"}, pod.Container{ID: "d1", Name: "debug"},
		pod.Container{ID: "x1", Name: "nosuch"}))
	is("all kinds, and those that have ended", map[string]string{
		"m2": "web/main/one", "m1": "web/main/one", "s1": "web/sidecar/", "d1": "web/debug/", "x1": "", "m": "", "": "",
	})
	newer := thePod()
	newer.Spec.Containers[0].Image = "two"
	x.SetPod(newer)
	is("a newer version of the pod", map[string]string{"m2": "web/main/two", "s1": "web/sidecar/"})
	x.SetState("u", state(pod.Container{ID: "m2", Name: "main"}))
	is("a container was removed", map[string]string{"m2": "web/main/two", "m1": "", "s1": ""})
	x.Forget("u")
	is("the pod is gone", map[string]string{"m2": ""})
	x.Forget("u")
	if len(x.pods)+len(x.byID) != 0 {
		t.Errorf("left behind: %v, %v", x.pods, x.byID)
	}
	if x.Complete() {
		t.Error("complete before it was said")
	}
	x.SetComplete()
	if !x.Complete() {
		t.Error("not complete after it was said")
	}
}

// A container that is not found may be one of a pod that could not be read yet.
func TestAPodThatCannotBeRead(t *testing.T) {
	for name, end := range map[string]func(*Index){
		"is read":   func(x *Index) { x.SetState("u", state()) },
		"goes away": func(x *Index) { x.Forget("u") },
	} {
		var x Index
		x.SetPod(thePod())
		x.SetComplete()
		if x.Complete() {
			t.Errorf("%s: complete before", name)
		}
		end(&x)
		other := thePod()
		other.UID = "new"
		x.SetPod(other)
		if !x.Complete() {
			t.Errorf("%s: not complete after", name)
		}
	}
}
