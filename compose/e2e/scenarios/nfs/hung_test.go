//go:build machine

package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// rounds is how often podsync ends in each way while the server hangs.
	rounds = 10
	// others is how many pods live beside one that waits for the server.
	others = 10
)

// TestNFSServerThatHangs has podsync end in each way, again and again, while the server does not answer. A pod runs
// with an export of the server, and another one waits for it.
func TestNFSServerThatHangs(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	source, dir := e.folder("data")
	e.CreatePods(writer("user", source))
	e.WaitReady(scene.Patience, "user")
	e.grows(dir)
	w := e.CreateSteadyPods()
	user := e.Witness("user")
	e.signal(unix.SIGSTOP)
	waits := withExport(scene.PausePod("waits"), source)
	main := &waits.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/sub", SubPath: "sub"})
	e.CreatePods(waits)
	e.Wait(scene.Patience, "word of the server", e.saysOfServer("waits", source))
	for _, way := range []struct {
		name string
		end  func()
	}{
		{"killed", func() { e.Signal(t, syscall.SIGKILL, role.Podsync) }},
		{"upgraded", func() { e.upgrade(); e.Signal(t, syscall.SIGKILL, role.Podsync) }},
		{"restarted", func() { e.must("microlet", "restart", string(role.Podsync)) }},
	} {
		var starts []string
		for i := range rounds {
			starts = append(starts, e.DuringStart(fmt.Sprintf("%s-%d", way.name, i), way.end, role.Podsync))
		}
		if way.name == "upgraded" {
			e.runsNewest()
		}
		t.Logf("podsync was %s %d times; a pod created at that moment is Ready after %s", way.name, rounds,
			strings.Join(starts, ", "))
	}
	w.Untouched()
	w.NodeReady()
	user.Untouched()
	t.Logf("the greatest age of the Lease is %s", scene.Milliseconds(w.LeaseAge()))
	var hung []string
	scene.Await(t, scene.Patience, "a mount that waits for the server", func() error {
		if hung = e.waiting(); len(hung) == 0 {
			return errors.New("nothing waits")
		}
		return nil
	})
	if p := e.Record.View().Pod(e.Namespace, "waits"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s although the server hangs", scene.Describe(p))
	}
	thawed := time.Now()
	e.signal(unix.SIGCONT)
	e.WaitReady(scene.Patience, "waits")
	t.Logf("at the end these waited: %q; the pod is Ready %s after the server goes on", hung,
		scene.Milliseconds(time.Since(thawed)))
	e.grows(dir)
	user.Untouched()
	e.end("user", "waits")
	e.clean()
	w.Untouched()
}

// upgrade puts another file of the same binary in the place of the node agent's, as an installation does.
func (e *exports) upgrade() {
	e.T.Helper()
	e.must("sh", "-c", "cp /usr/bin/microlet /usr/bin/microlet.next && mv /usr/bin/microlet.next /usr/bin/microlet")
}

// runsNewest judges that podsync runs that file.
func (e *exports) runsNewest() {
	e.T.Helper()
	e.must("test", fmt.Sprintf("/proc/%d/exe", e.MustPID(e.T, role.Podsync)), "-ef", "/usr/bin/microlet")
}

func (e *exports) must(args ...string) {
	e.T.Helper()
	if _, err := e.RunOnMachine(e.T.Context(), args...); err != nil {
		e.T.Fatal(err)
	}
}

// saysOfServer returns a condition: an Event of the pod says that the export does not answer.
func (e *exports) saysOfServer(pod string, source *corev1.NFSVolumeSource) func(record.View) error {
	has := e.says(pod, exportOf(source), "has not answered for")
	does := e.says(pod, exportOf(source), "does not answer")
	return func(v record.View) error {
		if err := has(v); err != nil {
			return does(v)
		}
		return nil
	}
}

// TestNFSDelaysNoOtherPod: pods are started, probed and deleted beside those that wait for a server.
func TestNFSDelaysNoOtherPod(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	source, _ := e.folder("data")
	e.crowd("first") // images are pulled, and whatever else is done once
	start, end := e.crowd("before")
	e.signal(unix.SIGSTOP)
	e.CreatePods(withExport(scene.PausePod("waits"), source), withExport(scene.PausePod("waits-too"), source))
	e.Wait(scene.Patience, "word of the server", e.saysOfServer("waits", source))
	began, ended := e.crowd("beside")
	t.Logf("p50 of %d pods: Ready after %s, gone after %s; beside a server that hangs: %s (%.2f times), %s (%.2f times)",
		others, start, end, began, began.Seconds()/start.Seconds(), ended, ended.Seconds()/end.Seconds())
	if p := e.Record.View().Pod(e.Namespace, "waits"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s although the server hangs", scene.Describe(p))
	}
	e.signal(unix.SIGCONT)
	e.WaitReady(scene.Patience, "waits", "waits-too")
	e.end("waits", "waits-too")
	e.clean()
}

// crowd starts pods at once and deletes them, and returns the medians of both. All are probed.
func (e *exports) crowd(name string) (start, end time.Duration) {
	e.T.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range others {
		p := scene.OnNode(scene.ProbedPod(fmt.Sprintf("%s-%d", name, i), scene.HTTPProbe), e.NodeName())
		pods, names = append(pods, p), append(names, p.Name)
	}
	mark := e.Record.Mark()
	e.CreatePods(pods...)
	e.WaitReady(scene.Patience, names...)
	e.DeletePods(names...)
	e.Wait(scene.Patience, "the end of the other pods", e.AreGone(names...))
	e.SyncRecord()
	var starts, ends []time.Duration
	for _, t := range record.PodTimes(e.Record.Since(mark)) {
		if !t.Created.IsZero() && !t.Gone.IsZero() {
			starts, ends = append(starts, t.Ready.Sub(t.Created)), append(ends, t.Gone.Sub(t.Deleted))
		}
	}
	return scene.Milliseconds(record.Percentile(starts, 0.5)), scene.Milliseconds(record.Percentile(ends, 0.5))
}

// TestNFSPodEndsWhileServerHangs deletes pods while the server does not answer. One that neither reads nor writes at
// that moment goes, though others use the same export. SIGKILL ends some of the kernel's waits for a server: one that
// writes goes, or says why not and goes when the server answers. The others run on.
func TestNFSPodEndsWhileServerHangs(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	source, dir := e.folder("data")
	e.CreatePods(reader("reads", source), writer("writes", source), writer("stays", source))
	e.WaitReady(scene.Patience, "reads", "writes", "stays")
	e.grows(dir)
	w := e.Witness("stays")
	e.signal(unix.SIGSTOP)
	e.writersWait(2)
	e.SyncRecord()
	reads, writes := e.Record.View().Pod(e.Namespace, "reads"), e.Record.View().Pod(e.Namespace, "writes")
	begin := time.Now()
	e.DeletePods("reads", "writes")
	e.Wait(scene.Patience, "the end of the pod that reads", e.AreGone("reads"))
	t.Logf("the pod that reads is gone after %s", scene.Milliseconds(time.Since(begin)))
	e.LeavesNothing([]*corev1.Pod{reads})
	gone, says := e.AreGone("writes"), e.HasEvent("writes", "FailedKillPod")
	e.Wait(2*scene.Patience, "the end of the pod that writes, or word of it", func(v record.View) error {
		if gone(v) == nil {
			return nil
		}
		return says(v)
	})
	t.Logf("the pod that writes is gone or says why not after %s", scene.Milliseconds(time.Since(begin)))
	w.Untouched()
	e.signal(unix.SIGCONT)
	e.Wait(scene.Patience, "the end of the pod that writes", gone)
	e.LeavesNothing([]*corev1.Pod{writes})
	e.grows(dir)
	w.Untouched()
	e.end("stays")
	e.clean()
}

// TestNFSLastPodEndsWhileServerHangs: no other pod uses the exports, so the kernel has to disconnect from the server.
// The pods go all the same, many at once, and leave podsync what it needs for others.
func TestNFSLastPodEndsWhileServerHangs(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	var names []string
	var pods []*corev1.Pod
	for i := range others {
		source, _ := e.folder(fmt.Sprintf("data-%d", i))
		p := reader(fmt.Sprintf("reads-%d", i), source)
		pods, names = append(pods, p), append(names, p.Name)
	}
	e.CreatePods(pods...)
	e.WaitReady(scene.Patience, names...)
	e.SyncRecord()
	for i, name := range names {
		pods[i] = e.Record.View().Pod(e.Namespace, name)
	}
	e.signal(unix.SIGSTOP)
	begin := time.Now()
	e.DeletePods(names...)
	e.Wait(scene.Patience, "the end of the pods", e.AreGone(names...))
	t.Logf("%d pods are gone after %s; these wait: %q", others, scene.Milliseconds(time.Since(begin)), e.waiting())
	e.LeavesNothing(pods)
	e.CreatePods(scene.PausePod("beside"))
	e.WaitReady(scene.Patience, "beside")
	e.signal(unix.SIGCONT)
	e.clean()
	source, dir := e.folder("data-0")
	e.CreatePods(writer("again", source))
	e.WaitReady(scene.Patience, "again")
	e.grows(dir)
	e.end("again", "beside")
	e.clean()
}

// TestNFSServerThatDies: a pod that uses the server goes on when there is another one, and so does one that could not
// be started.
func TestNFSServerThatDies(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	source, dir := e.folder("data")
	e.CreatePods(writer("user", source))
	e.WaitReady(scene.Patience, "user")
	e.grows(dir)
	w := e.Witness("user")
	if err := e.Kill(t.Context(), rig.NFSServer); err != nil {
		t.Fatal(err)
	}
	away, awayDir := e.folder("away")
	e.CreatePods(writer("waits", away))
	e.Wait(scene.Patience, "word of the server", e.says("waits", exportOf(away)))
	for _, event := range e.Record.View().Events(e.Namespace, "waits") {
		t.Logf("%s: %s", event.Reason, event.Message)
	}
	e.KillDuringStart("meanwhile", role.Podsync)
	begin := time.Now()
	if err := e.StartNFS(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	e.WaitReady(scene.Patience, "waits")
	t.Logf("the pod is Ready %s after the start of the server began", scene.Milliseconds(time.Since(begin)))
	e.grows(dir)
	e.grows(awayDir)
	w.Untouched()
	e.end("user", "waits")
	e.clean()
	for _, d := range []string{dir, awayDir} {
		if text, err := os.ReadFile(filepath.Join(d, "lines")); err != nil || strings.Trim(string(text), "line\n") != "" {
			t.Errorf("the server has %q in %s, %v", text, d, err)
		}
	}
}
