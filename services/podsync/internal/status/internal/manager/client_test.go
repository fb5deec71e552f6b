package manager

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestClient(t *testing.T) {
	p := testPod("a")
	set := fake.NewClientset(p)
	c := NewClient(set)
	s := runs(p)
	patch, err := statusPatch(p.UID, &p.Status, merged(p, &s))
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.PatchPodStatus(t.Context(), p.Namespace, p.Name, patch)
	if err != nil || after.Status.PodIP != "10.0.0.2" {
		t.Fatalf("patched pod %+v, error %v", after, err)
	}
	if got, err := c.GetPod(t.Context(), p.Namespace, p.Name); err != nil || got.Status.PodIP != "10.0.0.2" {
		t.Errorf("pod %+v, error %v", got, err)
	}
	if err := c.DeletePod(t.Context(), p.Namespace, p.Name, p.UID); err != nil {
		t.Fatal(err)
	}
	actions := set.Actions()
	first, last := actions[0].(clienttesting.PatchAction), actions[len(actions)-1].(clienttesting.DeleteActionImpl)
	if first.GetSubresource() != "status" || first.GetPatchType() != types.StrategicMergePatchType {
		t.Errorf("patch of %q as %s", first.GetSubresource(), first.GetPatchType())
	}
	want := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions("u1")}
	if o := last.DeleteOptions; *o.GracePeriodSeconds != *want.GracePeriodSeconds ||
		*o.Preconditions.UID != *want.Preconditions.UID {
		t.Errorf("deleted with %+v", o)
	}
}
