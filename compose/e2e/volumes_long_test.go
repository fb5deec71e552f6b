//go:build long && !bench

package e2e

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
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// TestVolumesHandover: each agent finds the volumes that the other has set up, keeps them as they are
// and up to date, gives them to a container that starts again, and removes them.
func TestVolumesHandover(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	s := newScene(t)
	s.secret("secret", "hidden")
	content := func(key string) { s.config("config", map[string]string{"key": key, "other": "bound"}) }
	content("first")
	made := func(name string) *corev1.Pod {
		p := volumesPod(filepath.Join(t.TempDir(), name))
		p.Name = name
		s.create(p)
		s.ready(patience, name)
		p = s.record.View().Pod(s.ns, name)
		s.sees(p, 0, patience, "==end")
		return p
	}
	before := made("volumes")
	w := s.witness("volumes")
	shared.switchTo(t, rig.AgentMicrolet)
	ours := made("by-microlet")
	w.untouched()
	s.changes(ours, "now: second", func() { content("second") })
	s.sees(before, 0, shown, "now: second")
	s.endContainer("volumes")
	s.wait(patience, "the start of the kubelet's container by microlet", s.restarted("volumes", 1))
	s.sees(before, 1, patience, "kept: one two bound: bound")
	s.remove("volumes")
	s.wait(patience, "the end of the kubelet's pod", s.areGone("volumes"))
	s.leavesNothing([]*corev1.Pod{before})
	w = s.witness("by-microlet")
	shared.switchTo(t, rig.AgentKubelet)
	w.untouched()
	content("third")
	s.sees(ours, 0, patience, "now: third")
	s.endContainer("by-microlet")
	s.wait(patience, "the start of microlet's container by the kubelet", s.restarted("by-microlet", 1))
	s.sees(ours, 1, patience, "kept: one two bound: bound")
	s.remove("by-microlet")
	s.wait(patience, "the end of microlet's pod", s.areGone("by-microlet"))
	s.leavesNothing([]*corev1.Pod{ours})
	shared.switchTo(t, rig.AgentMicrolet)
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
	if err := unix.Mount("hangs", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
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
	shared.use(t)
	s := newScene(t)
	directory, path := corev1.HostPathDirectory, hang(t)
	var hung []string
	for i := range 5 {
		p := plain(fmt.Sprintf("hung-%d", i))
		p.Spec.Volumes = []corev1.Volume{{
			Name:         "v",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &directory}},
		}}
		s.create(p)
		hung = append(hung, p.Name)
	}
	threads := func() int {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.mustPID(t, role.Podsync)))
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	before := threads()
	s.create(plain("neighbour"))
	s.ready(patience, "neighbour")
	t.Logf("a pod beside the hung ones: created to Ready in %s", ms(s.startTime("neighbour")))
	s.remove("hung-0")
	s.wait(shown, "the end of a pod whose volume hangs", s.areGone("hung-0"))
	for _, name := range hung[1:] {
		s.wait(5*time.Minute, "word of the path that hangs", func(v record.View) error {
			var seen []string
			for _, e := range v.Events(s.ns, name) {
				if seen = append(seen, e.Message); e.Reason == "FailedMount" &&
					strings.Contains(e.Message, path+" does not answer: a call that began") {
					return nil
				}
			}
			return fmt.Errorf("pod %s: only %q", name, seen)
		})
	}
	if grown := threads() - before; grown > 5 {
		t.Errorf("%d threads more than at the beginning: tries pile up", grown)
	}
	s.remove(hung[1:]...)
	s.wait(shown, "the end of the pods whose volume hangs", s.areGone(hung...))
}
