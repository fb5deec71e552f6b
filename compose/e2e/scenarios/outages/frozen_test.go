//go:build long

package outages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// disk is an ext4 on a loop device, which can be frozen: who writes to it then waits in the kernel, where nothing ends
// it.
type disk struct {
	t      *testing.T
	dir    string
	frozen bool
}

// newDisk mounts a disk until the test has ended. It is thawed then whatever has happened.
func newDisk(t *testing.T) *disk {
	t.Helper()
	parent := t.TempDir()
	image := filepath.Join(parent, "image")
	d := &disk{t: t, dir: filepath.Join(parent, "mnt")}
	for _, args := range [][]string{
		{"truncate", "-s", "16M", image}, {"mkfs.ext4", "-q", image}, {"mkdir", d.dir},
		{"mount", "-o", "loop", image, d.dir},
	} {
		d.run(t.Context(), args...)
	}
	t.Cleanup(func() {
		d.thaw()
		scene.Await(t, scene.Patience, "the unmount of the disk", func() error { return unix.Unmount(d.dir, 0) })
	})
	return d
}

func (d *disk) run(ctx context.Context, args ...string) {
	d.t.Helper()
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (d *disk) freeze() {
	d.t.Helper()
	d.run(d.t.Context(), "fsfreeze", "--freeze", d.dir)
	d.frozen = true
}

func (d *disk) thaw() {
	d.t.Helper()
	if d.frozen {
		d.frozen = false
		d.run(context.WithoutCancel(d.t.Context()), "fsfreeze", "--unfreeze", d.dir)
	}
}

// frozenPod has a folder that is to be made on the disk.
func frozenPod(name string, d *disk) *corev1.Pod {
	p := scene.PausePod(name)
	make := corev1.HostPathDirectoryOrCreate
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(d.dir, name), Type: &make},
	}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return p
}

// saysOfPath returns a condition: an Event of the pod says that the path does not answer.
func saysOfPath(s *scene.Scene, pod, path string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			seen = append(seen, e.Message)
			if e.Reason == "FailedMount" && strings.Contains(e.Message, path+": has not answered for 30s") {
				return nil
			}
		}
		return fmt.Errorf("pod %s has only the Events %q", pod, seen)
	}
}

// TestFrozenFileSystem: podsync is killed again and again while a call on a volume hangs in the kernel. What hangs is
// no process of podsync's own, so each successor works at once.
func TestFrozenFileSystem(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	d := newDisk(t)
	d.freeze()
	s.CreatePods(frozenPod("frozen", d))
	path := filepath.Join(d.dir, "frozen")
	s.Wait(scene.Patience, "word of the frozen file system", saysOfPath(s, "frozen", path))
	const kills = 10
	var starts []string
	for i := range kills {
		starts = append(starts, s.KillDuringStart(fmt.Sprintf("mid-%d", i), role.Podsync))
	}
	w.Untouched()
	w.NodeReady()
	t.Logf("podsync was killed %d times; a pod created at that moment is Ready after %s; the greatest age of the Lease "+
		"is %s", kills, strings.Join(starts, ", "), scene.Milliseconds(w.LeaseAge()))
	left := mounters(t)
	if len(left) == 0 {
		t.Error("nothing hangs on the frozen file system, so this test shows nothing")
	}
	if p := s.Record.View().Pod(s.Namespace, "frozen"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s although its volume hangs", scene.Describe(p))
	}
	thawed := time.Now()
	d.thaw()
	s.WaitReady(scene.Patience, "frozen")
	t.Logf("%d processes hung at the end; after the thaw the pod is Ready in %s", len(left),
		scene.Milliseconds(time.Since(thawed)))
	p := s.Record.View().Pod(s.Namespace, "frozen")
	s.DeletePods("frozen")
	s.Wait(scene.Patience, "the end of the pod", s.AreGone("frozen"))
	s.LeavesNothing([]*corev1.Pod{p})
	scene.Await(t, scene.Patience, "the end of what hung", func() error {
		for _, m := range left {
			if _, err := os.Stat(m); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is still there", m)
			}
		}
		return nil
	})
}

// mounters are the folders below /proc of podsync's children that wait in the kernel.
func mounters(t *testing.T) []string {
	t.Helper()
	states, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, state := range states {
		process := filepath.Dir(filepath.Dir(filepath.Dir(state)))
		text, err := os.ReadFile(state)
		if err != nil || !strings.Contains(string(text), ") D ") {
			continue
		}
		// The name of the program is that of the file, /proc/self/exe; its arguments are gone once it was killed.
		if strings.Contains(string(text), "(exe)") || strings.Contains(string(text), "(microlet") {
			found[process] = true
		}
	}
	var all []string
	for process := range found {
		all = append(all, process)
	}
	return all
}
