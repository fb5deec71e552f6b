//go:build long

package storage

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// TestCSIDisks: a block volume and a file system of a size keep what a pod has written for the next one, and grow under
// it with their claims. podsync is killed meanwhile.
func TestCSIDisks(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	disks(s, func() { s.KillDuringStart("meanwhile", role.Podsync) })
}

// TestCSIDisksOfTheKubelet holds the scenario to a live kubelet.
func TestCSIDisksOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	disks(scene.New(t), func() {})
}

// sizes prints how large the two volumes are, once a second.
const sizes = `while :; do
	echo "device $(blockdev --getsize64 /dev/block), files $(df -Pk /files | tail -n 1 | awk '{print $2}')"
	sleep 1
done`

// disks runs pods with a block volume and a file system of a size. While they are large, something happens to the node
// agent.
func disks(s *scene.Scene, happen func()) {
	s.T.Helper()
	c := s.StartCSI()
	names := []string{"block", "files"}
	volumes := []string{c.Claim("block", scene.Block("8Mi")), c.Claim("files", scene.Sized("8Mi"))}
	pod := func(name, script string) *corev1.Pod {
		return scene.WithDevices(scene.WithClaims(scene.ScriptPod(name, script+"\n"+sizes), "files"), "block")
	}
	s.CreatePods(pod("first", `set -e
echo first | dd of=/dev/block bs=512 conv=sync,fsync 2>/dev/null
echo first >/files/by`))
	s.WaitReady(scene.Patience, "first")
	first := s.Record.View().Pod(s.Namespace, "first")
	sees(s, first, 0, "device 8388608, files 8192")
	for _, name := range names {
		c.Resize(name, "16Mi")
	}
	sees(s, first, 0, "device 16777216, files 16384")
	for i, name := range names {
		c.WaitCapacity(name, resource.MustParse("16Mi"))
		if _, ok := c.Called(csicalls.Expand, volumes[i], csicalls.Line.OK); !ok {
			s.T.Errorf("the node did not expand volume %s", name)
		}
	}
	s.Wait(scene.Patience, "the Events of the expansion", saysThatItGrew(s, "first", len(names)))
	happen()
	s.DeletePods("first")
	s.Wait(scene.Patience, "the pod's end", s.AreGone("first"))
	s.LeavesNothing([]*corev1.Pod{first})
	c.LeavesNoVolume()

	s.CreatePods(pod("second", `head -c 5 /dev/block; echo; cat /files/by`))
	s.WaitReady(scene.Patience, "second")
	second := s.Record.View().Pod(s.Namespace, "second")
	sees(s, second, 0, "first\nfirst\ndevice 16777216, files 16384")
	s.DeletePods("second")
	s.Wait(scene.Patience, "the pod's end", s.AreGone("second"))
	s.LeavesNothing([]*corev1.Pod{second})
	c.LeavesNoVolume()
	c.DeleteClaims(names...)
	c.KeepsContract()
}

// saysThatItGrew returns a condition: the pod has an Event of the expansion of each volume.
func saysThatItGrew(s *scene.Scene, pod string, volumes int) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			if e.Reason == "FileSystemResizeSuccessful" && strings.Contains(e.Message, "NodeExpandVolume succeeded") {
				seen = append(seen, e.Message)
			}
		}
		if len(seen) < volumes {
			return fmt.Errorf("pod %s has the Events %q", pod, seen)
		}
		return nil
	}
}
