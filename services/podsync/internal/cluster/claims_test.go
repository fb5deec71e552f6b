package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func bound() (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	return &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "c"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}, &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: v1.PersistentVolumeSpec{
				ClaimRef: &v1.ObjectReference{UID: "c"},
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{
						{Key: "host", Operator: v1.NodeSelectorOpIn, Values: []string{"n1"}},
					},
				}}}},
			},
		}
}

func TestFind(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	labels := map[string]string{"host": "n1"}
	for name, c := range map[string]struct {
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		labels map[string]string
		want   string
	}{
		"bound": {},
		"deleted but protected": {change: func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{protection}
		}},
		"missing": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Name = "other" }, nil,
			`error processing PVC ns/data: failed to fetch PVC from API server: persistentvolumeclaims "data" not found`},
		"deleted": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{"other"}
		}, nil, "error processing PVC ns/data: PVC is being deleted"},
		"pending": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Status.Phase = v1.ClaimPending }, nil,
			"error processing PVC ns/data: PVC is not bound"},
		"lost": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Status.Phase = v1.ClaimLost }, nil,
			"error processing PVC ns/data: PVC is not bound"},
		"no volume": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "" }, nil,
			"error processing PVC ns/data: PVC has empty pvc.Spec.VolumeName"},
		"volume missing": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "gone" }, nil,
			`error processing PVC ns/data: failed to fetch PV gone from API server: persistentvolumes "gone" not found`},
		"not bound back": {func(_ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) { v.Spec.ClaimRef = nil }, nil,
			"found PV object pv but it has a nil pv.Spec.ClaimRef"},
		"bound to another": {func(_ *v1.PersistentVolumeClaim, v *v1.PersistentVolume) { v.Spec.ClaimRef.UID = "d" }, nil,
			"found PV object pv but its pv.Spec.ClaimRef.UID d does not point to claim.UID c"},
		"another node's": {nil, map[string]string{"host": "n2"}, "node affinity of PersistentVolume pv: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, pv := bound()
			if c.change != nil {
				c.change(claim, pv)
			}
			if c.labels == nil {
				c.labels = labels
			}
			f := ClaimFinder{Client: fake.NewClientset(claim, pv), Labels: func() map[string]string { return c.labels }}
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			got, err := f.Find(t.Context(), p, &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true},
			}})
			if c.want == "" {
				if err != nil || got.PV.Name != "pv" || !got.ReadOnly {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestModes: a volume is mounted or mapped as its volumeMode says, or not at all.
func TestModes(t *testing.T) {
	t.Parallel()
	mounts := v1.Container{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v"}}}
	maps := v1.Container{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: "v"}}}
	debugs := v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(maps)}
	for name, c := range map[string]struct {
		mode v1.PersistentVolumeMode
		spec v1.PodSpec
		want string
	}{
		"mounted": {v1.PersistentVolumeFilesystem, v1.PodSpec{Containers: []v1.Container{mounts}}, ""},
		"mapped":  {v1.PersistentVolumeBlock, v1.PodSpec{InitContainers: []v1.Container{maps}}, ""},
		"device mounted": {v1.PersistentVolumeBlock, v1.PodSpec{Containers: []v1.Container{mounts}},
			"volume v has volumeMode Block, but is specified in volumeMounts"},
		"files mapped": {v1.PersistentVolumeFilesystem,
			v1.PodSpec{Containers: []v1.Container{mounts}, EphemeralContainers: []v1.EphemeralContainer{debugs}},
			"volume v has volumeMode Filesystem, but is specified in volumeDevices"},
		"both": {v1.PersistentVolumeBlock, v1.PodSpec{Containers: []v1.Container{maps, mounts}},
			"volume v has volumeMode Block, but is specified in volumeMounts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, pv := bound()
			pv.Spec.VolumeMode = &c.mode
			labels := map[string]string{"host": "n1"}
			f := ClaimFinder{Client: fake.NewClientset(claim, pv), Labels: func() map[string]string { return labels }}
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: c.spec}
			got, err := f.Find(t.Context(), p, &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}})
			if c.want == "" {
				if err != nil || got.IsBlock() != (c.mode == v1.PersistentVolumeBlock) {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestEphemeral: the claim of a generic ephemeral volume has the pod's name, and must be the pod's own.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	claim, pv := bound()
	claim.Name = "p-v"
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	v := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}
	find := func() error {
		labels := map[string]string{"host": "n1"}
		f := ClaimFinder{Client: fake.NewClientset(claim, pv), Labels: func() map[string]string { return labels }}
		_, err := f.Find(t.Context(), p, v)
		return err
	}
	if err := find(); err == nil || !strings.Contains(err.Error(), "was not created for pod") {
		t.Errorf("another's claim: %v", err)
	}
	claim.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: new(true)},
	}
	if err := find(); err != nil {
		t.Errorf("its own claim: %v", err)
	}
}

func TestTheGroupOfAVolume(t *testing.T) {
	t.Parallel()
	claim, pv := bound()
	pv.Annotations = map[string]string{gidAnnotation: "7"}
	f := ClaimFinder{Client: fake.NewClientset(claim, pv), Labels: func() map[string]string {
		return map[string]string{"host": "n1"}
	}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	got, err := f.Find(t.Context(), p, &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}})
	if err != nil || got.Group != "7" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	_, err := (&ClaimFinder{}).Find(t.Context(), &v1.Pod{}, &v1.Volume{Name: "v"})
	if err == nil || !strings.Contains(err.Error(), "the node has no API server") {
		t.Error(err)
	}
}

// The Node authorizer, which has not heard of a pod yet, refuses the pod's claim and its PersistentVolume. That is no
// error: it would cost the pod a retry and a Warning Event.
func TestAnAPIServerThatIsBehind(t *testing.T) {
	for _, resource := range []string{"persistentvolumeclaims", "persistentvolumes"} {
		for lasts, want := range map[time.Duration]bool{time.Second: true, time.Hour: false} {
			synctest.Test(t, func(t *testing.T) {
				claim, pv := bound()
				client, began := fake.NewClientset(claim, pv), time.Now()
				client.PrependReactor("get", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					if time.Since(began) < lasts {
						return true, nil, apierrors.NewForbidden(v1.Resource(resource), "data", nil)
					}
					return false, nil, nil
				})
				f := ClaimFinder{Client: client, Labels: func() map[string]string { return map[string]string{"host": "n1"} }}
				p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
				_, err := f.Find(t.Context(), p, &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				}})
				if found := err == nil; found != want {
					t.Errorf("%s, refused for %s: %v", resource, lasts, err)
				}
				if !want && time.Since(began) > timeout {
					t.Errorf("%s: what stays refused is reported after %s", resource, time.Since(began))
				}
			})
		}
	}
}
