//go:build long

package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// replicas is how many pods the StatefulSet has.
const replicas = 10

// writes writes the same records to a block device and to a file, each at its own place, until it is asked to stop.
// Then it prints how many they are and the checksums of both. A pod that finds records prints the checksums at once.
// Any write that fails ends it.
const writes = `set -e
sums() { echo "$1 $(head -c 1048576 /dev/block | sha256sum | cut -c 1-64) $(sha256sum </files/data | cut -c 1-64)"; }
if [ -e /files/data ]; then sums again; ` + scene.Forever + `; fi
dd if=/dev/zero of=/dev/block bs=4096 count=256 conv=fsync 2>/dev/null
dd if=/dev/zero of=/files/data bs=4096 count=256 conv=fsync 2>/dev/null
i=0
until [ -e /files/stop ]; do
	i=$((i+1))
	printf '%-512s' "$HOSTNAME $i" >/tmp/record
	for to in /dev/block /files/data; do
		dd if=/tmp/record of=$to bs=512 seek=$((i % 2048)) conv=notrunc,fsync 2>/dev/null
	done
	echo $i >/files/count.next
	mv /files/count.next /files/count
	sleep 0.1
done
sums "written $i"
` + scene.Forever

// TestStatefulSetIsHandedOver gives the node from a kubelet to microlet and back under a StatefulSet that writes to
// block devices and file systems of the CSI driver. Nothing is unmounted or mounted again, no container ends, and what
// is in both is the same, also for the pods that come after.
func TestStatefulSetIsHandedOver(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	c := s.StartCSI()
	set := createStatefulSet(s)
	names := make([]string, replicas)
	for i := range names {
		names[i] = fmt.Sprintf("set-%d", i)
	}
	s.WaitReady(2*scene.Patience, names...)
	w := s.Witness(names...)
	files := map[string]string{}
	for _, name := range names {
		files[name] = c.Volume("files-" + name)
	}
	mounts := mountsOf(s, w.Pods)
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet} {
		counts(s, files)
		scene.Shared.SwitchTo(t, agent)
		counts(s, files)
		if now := mountsOf(s, w.Pods); !maps.Equal(now, mounts) {
			t.Errorf("with %s the mounts are %v, and were %v", agent, now, mounts)
		}
	}
	w.Untouched()
	for _, l := range c.Calls() {
		if slices.Contains([]string{csicalls.Unpublish, csicalls.Unstage, csicalls.Detach}, l.Method) {
			t.Errorf("call %d, %s of %s, while the pods run", l.Call, l.Method, l.Volume)
		}
	}
	sums := map[string]string{}
	for _, p := range w.Pods {
		if err := os.WriteFile(filepath.Join(s.CSIFiles(files[p.Name]), "stop"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sums[p.Name] = sum(s, p, "written")
	}
	w.Untouched()
	t.Logf("%d pods had %d mounts over three handovers", replicas, len(mounts))

	s.DeletePods(names...)
	s.Wait(2*scene.Patience, "other pods of the StatefulSet", areOthers(s, w.Pods))
	s.WaitReady(2*scene.Patience, names...)
	second := s.Witness(names...)
	for _, p := range second.Pods {
		if now := sum(s, p, "again"); now != sums[p.Name] {
			t.Errorf("pod %s finds the checksum %s, and had %s", p.Name, now, sums[p.Name])
		}
	}
	set.delete()
	s.Wait(2*scene.Patience, "the pods' end", s.AreGone(names...))
	s.LeavesNothing(slices.Concat(w.Pods, second.Pods))
	c.LeavesNoVolume()
	c.DeleteClaims(set.claims(names)...)
	c.KeepsContract()
}

// statefulSet is one that the scenario has made.
type statefulSet struct{ s *scene.Scene }

func createStatefulSet(s *scene.Scene) statefulSet {
	s.T.Helper()
	count, labels := int32(replicas), map[string]string{"app": "set"}
	p := scene.WithDevices(scene.ScriptPod("set", writes), "block")
	p.Spec.Volumes = nil // the StatefulSet has those of the claims
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/files"}}
	set := statefulSet{s}
	_, err := s.API.AppsV1().StatefulSets(s.Namespace).Create(s.T.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &count, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{
				*scene.NewClaim("block", scene.Block("2Mi")), *scene.NewClaim("files", scene.Sized("4Mi")),
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(set.delete) // before the scenario's pods, which it would create again
	return set
}

func (set statefulSet) delete() {
	err := set.s.API.AppsV1().StatefulSets(set.s.Namespace).DeleteCollection(context.WithoutCancel(set.s.T.Context()),
		metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		set.s.T.Error(err)
	}
}

// claims are those of the pods of these names.
func (statefulSet) claims(pods []string) []string {
	var all []string
	for _, name := range pods {
		all = append(all, "block-"+name, "files-"+name)
	}
	return all
}

// mountsOf are the numbers of all mounts of pods' volumes and devices, by their paths. Something that is mounted again
// has another number.
func mountsOf(s *scene.Scene, pods []*corev1.Pod) map[string]int {
	s.T.Helper()
	all, err := machine.MountNumbers(s.RootDir())
	if err != nil {
		s.T.Fatal(err)
	}
	maps.DeleteFunc(all, func(path string, _ int) bool {
		return !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return strings.Contains(path, string(p.UID)) })
	})
	if len(all) < 2*len(pods) {
		s.T.Fatalf("%d pods have only the mounts %v", len(pods), all)
	}
	return all
}

// counts waits until each pod has written more.
func counts(s *scene.Scene, files map[string]string) {
	s.T.Helper()
	for pod, volume := range files {
		count := func() (int, error) {
			text, err := os.ReadFile(filepath.Join(s.CSIFiles(volume), "count"))
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(strings.TrimSpace(string(text)))
		}
		before := -1
		scene.Await(s.T, scene.Patience, "writes of pod "+pod, func() error {
			now, err := count()
			switch {
			case err != nil:
				return err
			case before < 0:
				before = now
			case now > before:
				return nil
			}
			return fmt.Errorf("it has written %d records, as before", now)
		})
	}
}

// sum is the checksum that a pod prints, which is that of its device and of its file.
func sum(s *scene.Scene, p *corev1.Pod, word string) string {
	s.T.Helper()
	var found string
	scene.Await(s.T, scene.Patience, "the checksums of pod "+p.Name, func() error {
		text, err := s.ContainerLog(p, "main", 0)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) < 3 || fields[0] != word {
				continue
			}
			device, file := fields[len(fields)-2], fields[len(fields)-1]
			if device != file || len(file) != 64 {
				s.T.Fatalf("pod %s: the device and the file differ: %s", p.Name, line)
			}
			found = file
			s.T.Logf("pod %s: %s", p.Name, strings.Join(fields[:len(fields)-1], " "))
			return nil
		}
		return errors.New("it has not printed them")
	})
	return found
}

// areOthers returns a condition: each of these pods is gone, and one of its name is there.
func areOthers(s *scene.Scene, before []*corev1.Pod) func(record.View) error {
	return func(v record.View) error {
		for _, p := range before {
			if now := v.Pod(s.Namespace, p.Name); now == nil || now.UID == p.UID {
				return fmt.Errorf("pod %s is %s", p.Name, scene.Describe(now))
			}
		}
		return nil
	}
}
