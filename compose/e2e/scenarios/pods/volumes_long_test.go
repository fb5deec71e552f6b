//go:build long

package pods

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// TestVolumesHandover: each agent finds the volumes that the other has set up, keeps them as they are
// and up to date, gives them to a container that starts again, and removes them.
func TestVolumesHandover(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	secret(s, "secret", "hidden")
	content := func(key string) { config(s, "config", map[string]string{"key": key, "other": "bound"}) }
	content("first")
	made := func(name string) *corev1.Pod {
		p := volumesPod(filepath.Join(t.TempDir(), name))
		p.Name = name
		s.CreatePods(p)
		s.WaitReady(scene.Patience, name)
		p = s.Record.View().Pod(s.Namespace, name)
		sees(s, p, 0, scene.Patience, "==end")
		return p
	}
	before := made("volumes")
	w := s.Witness("volumes")
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	ours := made("by-microlet")
	w.Untouched()
	changes(s, ours, "now: second", func() { content("second") })
	sees(s, before, 0, shown, "now: second")
	s.EndContainer("volumes")
	s.Wait(scene.Patience, "the start of the kubelet's container by microlet", s.Restarted("volumes", 1))
	sees(s, before, 1, scene.Patience, "kept: one two bound: bound")
	s.DeletePods("volumes")
	s.Wait(scene.Patience, "the end of the kubelet's pod", s.AreGone("volumes"))
	s.LeavesNothing([]*corev1.Pod{before})
	w = s.Witness("by-microlet")
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	w.Untouched()
	content("third")
	sees(s, ours, 0, scene.Patience, "now: third")
	s.EndContainer("by-microlet")
	s.Wait(scene.Patience, "the start of microlet's container by the kubelet", s.Restarted("by-microlet", 1))
	sees(s, ours, 1, scene.Patience, "kept: one two bound: bound")
	s.DeletePods("by-microlet")
	s.Wait(scene.Patience, "the end of microlet's pod", s.AreGone("by-microlet"))
	s.LeavesNothing([]*corev1.Pod{ours})
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
}

// hang mounts a file system that answers nothing at all, as an NFS server that is gone. It ends with
// the test.
func hang(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open /dev/fuse, to make a file system that hangs: %v", err)
	}
	if err := unix.Mount("hangs", dir, "fuse", 0,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
		t.Fatal(errors.Join(err, unix.Close(device)))
	}
	t.Cleanup(func() {
		// Without its device the file system fails what hangs there.
		if err := errors.Join(unix.Close(device), unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestHungVolume: a file system that does not answer holds up the pods that have it and no others, and
// these can be deleted.
func TestHungVolume(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	directory, path := corev1.HostPathDirectory, hang(t)
	var hung []string
	for i := range 5 {
		p := scene.PausePod(fmt.Sprintf("hung-%d", i))
		p.Spec.Volumes = []corev1.Volume{{
			Name:         "v",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &directory}},
		}}
		s.CreatePods(p)
		hung = append(hung, p.Name)
	}
	threads := func() int {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.MustPID(t, role.Podsync)))
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	before := threads()
	s.CreatePods(scene.PausePod("neighbour"))
	s.WaitReady(scene.Patience, "neighbour")
	t.Logf("a pod beside the hung ones: created to Ready in %s", scene.Milliseconds(s.StartTime("neighbour")))
	s.DeletePods("hung-0")
	s.Wait(shown, "the end of a pod whose volume hangs", s.AreGone("hung-0"))
	for _, name := range hung[1:] {
		s.Wait(5*time.Minute, "word of the path that hangs", func(v record.View) error {
			var seen []string
			for _, e := range v.Events(s.Namespace, name) {
				if seen = append(seen, e.Message); e.Reason == "FailedMount" &&
					(strings.Contains(e.Message, path+": has not answered for 30s") ||
						strings.Contains(e.Message, path+": it does not answer: a call that began")) {
					return nil
				}
			}
			return fmt.Errorf("pod %s: only %q", name, seen)
		})
	}
	if grown := threads() - before; grown > 5 {
		t.Errorf("%d threads more than at the beginning: tries pile up", grown)
	}
	s.DeletePods(hung[1:]...)
	s.Wait(shown, "the end of the pods whose volume hangs", s.AreGone(hung...))
}
