//go:build long

package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/frozen"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// rounds is how often podsync ends in each way while a file system hangs.
const rounds = 10

// TestFrozenDisk: the folder of a hostPath is to be made on a disk that is frozen.
func TestFrozenDisk(t *testing.T) {
	outlasts(t, func(s *scene.Scene) *hanging { return hostPathOn(frozen.Disk(t, t.TempDir())) })
}

// TestFrozenFUSE: the same in a file system of a process that does not answer.
func TestFrozenFUSE(t *testing.T) {
	outlasts(t, func(s *scene.Scene) *hanging { return hostPathOn(frozen.FUSE(t, t.TempDir())) })
}

// TestFrozenCSI: the files of a CSI volume, which lies on a disk that is frozen, are to be given to the pod's group.
func TestFrozenCSI(t *testing.T) {
	outlasts(t, func(s *scene.Scene) *hanging {
		c := s.StartCSI()
		volume := c.Claim("data")
		f := frozen.Disk(t, filepath.Join(s.CSIVolumes(), volume))
		if err := os.Mkdir(s.CSIFiles(volume), 0o777); err != nil {
			t.Fatal(err)
		}
		p, group := scene.WithClaims(scene.PausePod("frozen"), "data"), int64(4242)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
		return &hanging{FileSystem: f, pod: p, path: "/volumes/kubernetes.io~csi/", end: func() {
			c.LeavesNoVolume()
			f.End()
			c.DeleteClaims("data")
			c.KeepsContract()
		}}
	})
}

// hanging is a pod that waits for a file system.
type hanging struct {
	*frozen.FileSystem
	pod *corev1.Pod
	// path is a part of the one that does not answer.
	path string
	// end is called when the pod is gone.
	end func()
}

// hostPathOn has a pod that wants a folder of a file system, which is to be made.
func hostPathOn(f *frozen.FileSystem) *hanging {
	path := filepath.Join(f.Dir, "folder")
	return &hanging{FileSystem: f, pod: scene.WithHostFolder(scene.PausePod("frozen"), path), path: path, end: f.End}
}

// outlasts has podsync end in each way, again and again, while a call on a volume hangs in the kernel. What hangs is no
// process of podsync's own, so each successor works at once.
func outlasts(t *testing.T, with func(*scene.Scene) *hanging) {
	scene.Shared.UseMicrolet(t)
	installed := scene.Shared.Install(t, scene.Shared.Executable)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	h := with(s)
	h.Freeze()
	s.CreatePods(h.pod)
	s.Wait(2*scene.Patience, "word of the frozen file system", saysOfPath(s, "frozen", h.path))
	for _, way := range []struct {
		name string
		end  func()
	}{
		{"killed", func() { s.Signal(t, syscall.SIGKILL, role.Podsync) }},
		{"upgraded", func() { installed.Replace(t, scene.Shared.Executable); s.Signal(t, syscall.SIGKILL, role.Podsync) }},
		{"restarted", func() { microlet(s, "restart", string(role.Podsync)) }},
	} {
		var starts []string
		for i := range rounds {
			starts = append(starts, s.DuringStart(fmt.Sprintf("%s-%d", way.name, i), way.end, role.Podsync))
			if way.name == "upgraded" {
				installed.Runs(t, role.Podsync)
			}
		}
		t.Logf("podsync was %s %d times; a pod created at that moment is Ready after %s", way.name, rounds,
			strings.Join(starts, ", "))
	}
	w.Untouched()
	w.NodeReady()
	t.Logf("the greatest age of the Lease is %s", scene.Milliseconds(w.LeaseAge()))
	left := scene.HungMounters(t)
	if len(left) == 0 {
		t.Error("nothing hangs on the frozen file system, so this test shows nothing")
	}
	if p := s.Record.View().Pod(s.Namespace, "frozen"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s although its volume hangs", scene.Describe(p))
	}
	thawed := time.Now()
	h.Thaw()
	s.WaitReady(scene.Patience, "frozen")
	t.Logf("%d processes hung at the end; after the thaw the pod is Ready in %s", len(left),
		scene.Milliseconds(time.Since(thawed)))
	p := s.Record.View().Pod(s.Namespace, "frozen")
	s.DeletePods("frozen")
	s.Wait(scene.Patience, "the end of the pod", s.AreGone("frozen"))
	s.LeavesNothing([]*corev1.Pod{p})
	w.Untouched()
	scene.Await(t, scene.Patience, "the end of what hung", func() error {
		for _, m := range left {
			if _, err := os.Stat(m); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is still there", m)
			}
		}
		return nil
	})
	h.end()
}

// saysOfPath returns a condition: an Event of the pod says that a path with this part does not answer. The first one
// comes after half a minute, and after the two minutes of a mount for a volume that may have many files.
func saysOfPath(s *scene.Scene, pod, path string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			seen = append(seen, e.Message)
			if e.Reason != "FailedMount" || !strings.Contains(e.Message, path) {
				continue
			}
			for _, word := range []string{"has not answered for", "does not answer"} {
				if strings.Contains(e.Message, word) {
					return nil
				}
			}
		}
		return fmt.Errorf("pod %s has only the Events %q", pod, seen)
	}
}

// microlet runs a command of the node agent.
func microlet(s *scene.Scene, args ...string) {
	s.T.Helper()
	args = append(args, "--runtime-dir="+s.RuntimeDir())
	if out, err := exec.CommandContext(s.T.Context(), s.Executable, args...).CombinedOutput(); err != nil {
		s.T.Fatalf("microlet %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
