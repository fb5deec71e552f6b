//go:build long

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const settings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {QOSReserved: true}
podCIDR: 10.99.0.0/24
enableControllerAttachDetach: false
qosReserved: {memory: 50%%}
reservedSystemCPUs: "0"
kubeletCgroups: %s/agent
`

// mounter is a program that mounts NFS exports, and cannot.
const mounter = `#!/bin/sh
echo "the mounter has: $*" >&2
exit 32
`

// TestSettings has settings together that few nodes have, and looks at the effect of each.
func TestSettings(t *testing.T) {
	s := scene.New(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "mounter")
	for path, text := range map[string]string{
		program:                                mounter,
		filepath.Join(dir, "10-settings.conf"): fmt.Sprintf(settings, s.CgroupRoot()),
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	before := agentLog(s)
	s.UseMicrolet(t, "--config-dir="+dir, "--experimental-mounter-path="+program)

	var node *corev1.Node
	scene.Await(t, scene.Patience, "a CPU that is not allocatable", func() (err error) {
		if node, err = s.API.CoreV1().Nodes().Get(t.Context(), s.NodeName(), metav1.GetOptions{}); err != nil {
			return err
		}
		has, may := node.Status.Capacity.Cpu().MilliValue(), node.Status.Allocatable.Cpu().MilliValue()
		if has-may != 1000 {
			return fmt.Errorf("of %dm CPU, %dm are allocatable", has, may)
		}
		return nil
	})
	const attached = "volumes.kubernetes.io/controller-managed-attach-detach"
	if value, is := node.Annotations[attached]; is {
		t.Errorf("the Node says that the controller attaches volumes: %s=%s", attached, value)
	}
	for _, r := range []role.Role{role.Up, role.Podsync, role.NodeAPI} {
		at, err := os.ReadFile("/proc/" + strconv.Itoa(s.MustPID(t, r)) + "/cgroup")
		if err != nil || !strings.Contains(string(at), ":"+s.CgroupRoot()+"/agent") {
			t.Errorf("%s is in\n%s, %v", r, at, err)
		}
	}
	checkVolumes(s)
	checkReserved(s)

	const want = `msg="Updating Pod CIDR" service=podsync originalPodCIDR="" newPodCIDR=10.99.0.0/24`
	if !strings.Contains(strings.TrimPrefix(agentLog(s), before), want) {
		t.Errorf("the log has no %s", want)
	}
}

func agentLog(s *scene.Scene) string {
	s.T.Helper()
	text, err := os.ReadFile(s.Log(rig.AgentProgram))
	if err != nil {
		s.T.Fatal(err)
	}
	return string(text)
}

// checkVolumes looks at the Events of pods with volumes that the node does not mount or attach.
func checkVolumes(s *scene.Scene) {
	t := s.T
	t.Helper()
	with := func(name string, source corev1.VolumeSource) *corev1.Pod {
		p := scene.PausePod(name)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		return p
	}
	none, volume := "", s.Namespace
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claims, volumes := s.API.CoreV1().PersistentVolumeClaims(s.Namespace), s.API.CoreV1().PersistentVolumes()
	if _, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef: &corev1.ObjectReference{Namespace: s.Namespace, Name: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "unknown.example", VolumeHandle: "h"},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Create(t.Context(), scene.NewClaim("claim", func(c *corev1.PersistentVolumeClaimSpec) {
		c.StorageClassName, c.VolumeName = &none, volume
	}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.CreatePods(
		with("nfs", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "127.0.0.1", Path: "/x"}}),
		with("csi", corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}))
	t.Cleanup(func() {
		if err := volumes.Delete(context.WithoutCancel(t.Context()), volume, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for pod, want := range map[string]string{
		"nfs": "the mounter has: mount -t nfs -- 127.0.0.1:/x ",
		"csi": `AttachVolume.Attach failed for volume "` + volume + `" : attaching volumes from the kubelet is not supported`,
	} {
		s.Wait(scene.Patience, "the event of pod "+pod, func(v record.View) error {
			var all []string
			for _, e := range v.Events(s.Namespace, pod) {
				if strings.Contains(e.Message, want) {
					return nil
				}
				all = append(all, e.Reason+": "+e.Message)
			}
			return fmt.Errorf("no event of %s has %q, only %q", pod, want, all)
		})
	}
}

// checkReserved looks at what the lower classes may take when a Guaranteed and a Burstable pod request memory.
func checkReserved(s *scene.Scene) {
	t := s.T
	t.Helper()
	with := func(name, request, limit string) *corev1.Pod {
		p := scene.PausePod(name)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)},
		}
		if request == limit {
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("100m")
		}
		return p
	}
	s.CreatePods(with("guaranteed", "64Mi", "64Mi"), with("burstable", "32Mi", "96Mi"))
	s.WaitReady(scene.Patience, "guaranteed", "burstable")
	limit := func(class string) (int64, error) {
		at := filepath.Join(s.CgroupRoot(), "kubepods", class)
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory", at, "memory.limit_in_bytes"))
		if os.IsNotExist(err) {
			text, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", at, "memory.max"))
		}
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	scene.Await(t, scene.Patience, "half of what pods request is reserved", func() error {
		var limits []int64
		for _, class := range []string{"", "burstable", "besteffort"} {
			n, err := limit(class)
			if err != nil {
				return err
			}
			limits = append(limits, n)
		}
		if limits[0]-limits[1] != 32<<20 || limits[1]-limits[2] != 16<<20 {
			return fmt.Errorf("all pods, Burstable and BestEffort ones may have %d bytes", limits)
		}
		return nil
	})
}
