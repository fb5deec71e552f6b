package pods

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestClaims: pods claim a folder of the node, and a second one gets what a first one has left there. podsync is killed
// meanwhile. What cannot be mounted says why.
func TestClaims(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	claims(s, func() { s.KillDuringStart("claims-meanwhile", role.Podsync) })
}

// claims runs pods with claims. Between a container's two lives it lets something happen to the node agent.
func claims(s *scene.Scene, happen func()) {
	s.T.Helper()
	disk, made := s.T.TempDir(), filepath.Join(s.T.TempDir(), "made")
	kind := corev1.HostPathDirectoryOrCreate
	claim(s, "local", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk}})
	claim(s, "host", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: made, Type: &kind}})
	claim(s, "missing", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk + "/missing"}})

	p := claimant("first", `echo "$HOSTNAME" >>/local/by; echo x >/host/by; stat -c 'group: %g' /local/by
cat /local/by; echo ==end; `+scene.Forever, "local", "host")
	group := int64(4242)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	s.CreatePods(p, claimant("waits", scene.Forever, "missing"))
	s.WaitReady(scene.Patience, "first")
	sees(s, s.Record.View().Pod(s.Namespace, "first"), 0, scene.Patience, "group: 4242\nfirst\n==end")
	happen()
	s.EndContainer("first")
	s.Wait(scene.Patience, "the container's next start", s.Restarted("first", 1))
	first := s.Record.View().Pod(s.Namespace, "first")
	sees(s, first, 1, scene.Patience, "first\nfirst\n==end")
	s.Wait(scene.Patience, "why the other waits", eventWith(s, "waits", "FailedMount",
		`MountVolume.NewMounter initialization failed for volume "`+volumeOfClaim(s, "missing")+`" : path "`+disk+
			`/missing" does not exist`))

	s.DeletePods("first", "waits")
	s.Wait(scene.Patience, "the pods' end", s.AreGone("first", "waits"))
	s.LeavesNothing([]*corev1.Pod{first})
	if _, err := os.Stat(filepath.Join(made, "by")); err != nil {
		s.T.Errorf("what the pod wrote to the hostPath: %v", err)
	}
	reader := claimant("second", `cat /local/by; (echo x >/local/new) 2>/dev/null || echo read-only; echo ==end; `+
		scene.Forever, "local")
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	s.CreatePods(reader)
	s.WaitReady(scene.Patience, "second")
	sees(s, s.Record.View().Pod(s.Namespace, "second"), 0, scene.Patience, "first\nfirst\nread-only\n==end")
}

// claimant is a pod that mounts claims at folders of the same names.
func claimant(name, script string, claims ...string) *corev1.Pod {
	p := scene.ScriptPod(name, script)
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
		main := &p.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: c, MountPath: "/" + c})
	}
	return p
}

func volumeOfClaim(s *scene.Scene, claim string) string { return s.Namespace + "-" + claim }

// claim makes a PersistentVolume of this node, and a claim that is bound to it.
func claim(s *scene.Scene, name string, source corev1.PersistentVolumeSource) {
	s.T.Helper()
	ctx, size := s.T.Context(), corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes, class := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, ""
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeOfClaim(s, name)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeSource: source,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: s.Namespace, Name: name},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{s.NodeName()},
				}}}},
			}},
		},
	}
	volumes := s.API.CoreV1().PersistentVolumes()
	if _, err := volumes.Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		err := volumes.Delete(context.WithoutCancel(ctx), pv.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.T.Error(err)
		}
	})
	_, err := s.API.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: pv.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
}
