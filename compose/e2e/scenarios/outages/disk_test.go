//go:build long

package outages

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestDiskFull: the disk of the pods' folders, or of their logs, is full. A new pod says so and runs when there is
// room; one that is deleted goes, as that is what makes room; others are not touched.
func TestDiskFull(t *testing.T) {
	for name, disk := range map[string]struct {
		dir  func(*scene.Scene) string
		fill func(dir string) (ballast string, err error)
	}{
		"volumes": {func(s *scene.Scene) string { return filepath.Join(s.RootDir(), "pods") }, fillBytes},
		"logs":    {func(s *scene.Scene) string { return s.PodLogsDir() }, fillInodes},
	} {
		t.Run(name, func(t *testing.T) {
			scene.Shared.UseMicrolet(t)
			s := scene.New(t)
			config := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "big"},
				Data:       map[string]string{"a": strings.Repeat("a", 200<<10)},
			}
			if _, err := s.API.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			dir := disk.dir(s)
			smallDisk(s, dir)
			s.CreatePods(scene.PausePod("neighbour"), scene.PausePod("goes"))
			s.WaitReady(scene.Patience, "neighbour", "goes")
			w := s.Witness("neighbour")
			ballast, err := disk.fill(dir)
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk does not fill: %v", err)
			}

			p := scene.ScriptPod("waits", scene.Forever)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "big"}},
			}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			s.CreatePods(p)
			s.Wait(scene.Patience, "word of the full disk", func(v record.View) error {
				var reported []string
				for _, e := range v.Events(s.Namespace, "waits") {
					if reported = append(reported, e.Reason+": "+e.Message); e.Type == corev1.EventTypeWarning &&
						strings.Contains(e.Message, "no space left on device") {
						t.Logf("reported: %s: %s", e.Reason, e.Message)
						return nil
					}
				}
				return fmt.Errorf("%s, reported %q", scene.Describe(v.Pod(s.Namespace, "waits")), reported)
			})
			begin := time.Now()
			s.DeletePods("goes")
			s.Wait(scene.Patience, "the end of a pod on a full disk", s.AreGone("goes"))
			t.Logf("on the full disk a pod goes within %s", scene.Milliseconds(time.Since(begin)))
			s.SyncRecord()
			w.Untouched()
			if err := os.RemoveAll(ballast); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			s.WaitReady(scene.Patience, "waits")
			t.Logf("the pod is Ready %s after there is room", scene.Milliseconds(time.Since(begin)))
			w.Untouched()
			w.NodeReady()
		})
	}
}

// smallDisk puts a small file system over a folder of the agent until the scenario has ended.
func smallDisk(s *scene.Scene, dir string) {
	s.T.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.T.Fatal(err)
	}
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1m,nr_inodes=300,mode=0755"); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		s.DeleteAllPods() // what is mounted in it goes with the pods
		scene.Await(s.T, scene.Patience, "an end of the small disk", func() error { return unix.Unmount(dir, 0) })
	})
}

// fillBytes leaves no byte on a disk.
func fillBytes(dir string) (ballast string, err error) {
	ballast = filepath.Join(dir, ".ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return ballast, err
	}
	defer f.Close()
	_, err = io.Copy(f, zeroes{})
	return ballast, err
}

// fillInodes leaves no file on a disk, which empty files and folders need too.
func fillInodes(dir string) (ballast string, err error) {
	ballast = filepath.Join(dir, ".ballast")
	err = os.Mkdir(ballast, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(ballast, fmt.Sprint(i)), nil, 0o600)
	}
	return ballast, err
}

// zeroes has no end.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
