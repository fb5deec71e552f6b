//go:build machine

package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// exports is the NFS server in a scenario.
type exports struct {
	*scene.Scene
}

// newExports starts the server unless it runs. It runs and answers again when the scenario ends.
func newExports(t *testing.T) *exports {
	t.Helper()
	e := &exports{scene.New(t)}
	e.run()
	t.Cleanup(func() {
		e.run()
		e.signal(unix.SIGCONT)
	})
	return e
}

func (e *exports) run() {
	e.T.Helper()
	if e.ProgramPID(rig.NFSServer) != 0 {
		return
	}
	if err := e.StartNFS(context.WithoutCancel(e.T.Context())); err != nil {
		e.T.Fatal(err)
	}
}

func (e *exports) signal(sig unix.Signal) {
	e.T.Helper()
	if err := e.SignalNFS(sig); err != nil {
		e.T.Fatal(err)
	}
}

// folder makes a folder that the server exports, and returns it as a volume and as a path of this machine. It is the
// scenario's own.
func (e *exports) folder(name string) (*corev1.NFSVolumeSource, string) {
	e.T.Helper()
	name = e.Namespace + "-" + name
	path := filepath.Join(e.NFSFolder(), name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		e.T.Fatal(err)
	}
	return &corev1.NFSVolumeSource{Server: e.NFSAddress(), Path: rig.NFSPath + "/" + name}, path
}

// claim makes a claim for a PersistentVolume of an export.
func (e *exports) claim(name string, source *corev1.NFSVolumeSource, options ...string) {
	e.T.Helper()
	class, size := "", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: e.Namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, MountOptions: options,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{NFS: source},
			ClaimRef:                      &corev1.ObjectReference{Namespace: e.Namespace, Name: name},
		},
	}
	ctx := e.T.Context()
	if _, err := e.API.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() {
		err := e.API.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(ctx), pv.Name, metav1.DeleteOptions{})
		if err != nil {
			e.T.Error(err)
		}
	})
	claims := e.API.CoreV1().PersistentVolumeClaims(e.Namespace)
	if _, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: pv.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{}); err != nil {
		e.T.Fatal(err)
	}
	scene.Await(e.T, scene.Patience, "a volume for claim "+name, func() error {
		found, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", found.Status.Phase)
		}
		return err
	})
}

// withExport gives the first container of a pod an export at /data.
func withExport(p *corev1.Pod, source *corev1.NFSVolumeSource) *corev1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{NFS: source}})
	main := &p.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
	return p
}

// writer is a pod that adds a line to the file "lines" of an export, again and again.
func writer(name string, source *corev1.NFSVolumeSource) *corev1.Pod {
	return withExport(scene.ScriptPod(name, "while :; do echo line >>/data/lines; sleep 1; done"), source)
}

// reader is a pod that has read an export, and does nothing more with it.
func reader(name string, source *corev1.NFSVolumeSource) *corev1.Pod {
	return withExport(scene.ScriptPod(name, "ls /data; "+scene.Forever), source)
}

// grows waits until a writer of the folder has written since.
func (e *exports) grows(dir string) {
	e.T.Helper()
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, "lines"))
		if errors.Is(err, os.ErrNotExist) {
			return 0
		}
		if err != nil {
			e.T.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	scene.Await(e.T, scene.Patience, "a line in "+dir, func() error {
		if now := size(); now <= before {
			return fmt.Errorf("it has %d bytes, and had %d", now, before)
		}
		return nil
	})
}

// says returns a condition: an Event FailedMount of the pod has all these words.
func (e *exports) says(pod string, words ...string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, event := range v.Events(e.Namespace, pod) {
			lacks := func(word string) bool { return !strings.Contains(event.Message, word) }
			if event.Reason == "FailedMount" && !slices.ContainsFunc(words, lacks) {
				return nil
			}
			seen = append(seen, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("pod %s has only the Events %q", pod, seen)
	}
}

// exportOf is the source as mount(8) takes it.
func exportOf(source *corev1.NFSVolumeSource) string { return source.Server + ":" + source.Path }

// mounted lists what the node has mounted from servers, a line each: where, what, type and options.
func (e *exports) mounted() []string {
	e.T.Helper()
	lines, err := e.LinesOnMachine("sh", "-c", `awk '$3 ~ /^nfs/ { print $2, $1, $3, $4 }' /proc/self/mounts`)
	if err != nil {
		e.T.Fatal(err)
	}
	return lines
}

// waiting lists the node's processes that mount, and the threads of its agent that wait in the kernel.
func (e *exports) waiting() []string {
	e.T.Helper()
	lines, err := e.LinesOnMachine("sh", "-c",
		`ps -eLo pid=,stat=,comm= | awk '$3 ~ /^(mount|umount)/ || $2 ~ /^D/ && $3 ~ /^(microlet|exe)/'`)
	if err != nil {
		e.T.Fatal(err)
	}
	return lines
}

// writersWait waits until so many writers wait for the server: each sleeps for a second between two lines.
func (e *exports) writersWait(n int) {
	e.T.Helper()
	scene.Await(e.T, scene.Patience, "writers that wait for the server", func() error {
		lines, err := e.LinesOnMachine("sh", "-c", `ps -eo stat=,args= | awk '/^D/ && /echo line/'`)
		if err != nil {
			return err
		}
		if len(lines) != n {
			return fmt.Errorf("these wait: %q", lines)
		}
		return nil
	})
}

// end deletes pods. Nothing of them is left on the node.
func (e *exports) end(names ...string) {
	e.T.Helper()
	e.SyncRecord()
	var pods []*corev1.Pod
	for _, name := range names {
		if p := e.Record.View().Pod(e.Namespace, name); p != nil {
			pods = append(pods, p)
		}
	}
	e.DeletePods(names...)
	e.Wait(scene.Patience, "the end of the pods", e.AreGone(names...))
	e.LeavesNothing(pods)
}

// clean waits until the node has nothing mounted from servers, and nothing waits for one.
func (e *exports) clean() {
	e.T.Helper()
	begin := time.Now()
	scene.Await(e.T, scene.Patience, "a node without exports", func() error {
		if left := append(e.mounted(), e.waiting()...); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
	e.T.Logf("nothing of the server is left, %s after that", scene.Milliseconds(time.Since(begin)))
}
