//go:build long

package resize

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/microlet/microlet/compose/e2e/internal/criproxy"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestResizeKills kills podsync at each call that it makes to the runtime for the resize of a pod: before the runtime
// gets the call, when only the answer lacks, and behind it. What podsync writes to cgroups and files is between two of
// these calls. In the end the resources are what is asked for, everywhere, and only a container whose policy says so
// starts again.
func TestResizeKills(t *testing.T) {
	scene.Shared.EnsureUp(t)
	socket := filepath.Join(filepath.Dir(scene.Shared.RuntimeDir()), "before-containerd.sock")
	proxy, err := criproxy.Start(socket, scene.Shared.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	scene.Shared.UseMicrolet(t, "--container-runtime-endpoint=unix://"+socket)
	k := &killing{
		Scene: scene.New(t), proxy: proxy,
		methods: map[string]int{}, changes: map[string]int{},
	}
	k.names = createAll(k.Scene, 1, func() int64 { return least })
	whole := k.Scene
	for i := range kinds {
		t.Run(kinds[i].name, func(t *testing.T) {
			own := *whole
			own.T, k.Scene = t, &own
			before := k.killed
			for _, at := range moments {
				k.each(i, at)
			}
			// A pod that grows or shrinks takes at least three calls: for itself and a container, or that container's end
			// and start.
			if least := len(moments) * 2 * 3; k.killed-before < least {
				t.Errorf("podsync was killed %d times, less than %d: it made too few calls", k.killed-before, least)
			}
		})
	}
	t.Logf("podsync was killed %d times, at %v", k.killed, k.methods)
}

// killing kills podsync at calls to the runtime.
type killing struct {
	*scene.Scene
	proxy *criproxy.Proxy
	names []string
	// changes counts the resizes of each pod.
	changes map[string]int
	killed  int
	methods map[string]int
}

// moment is when podsync is killed, relative to one of its calls.
type moment string

// moments are all of them: before the runtime gets the call, when it has done its work and only the answer lacks, and
// at the next call that only reads, when podsync has done what comes after the answer.
var moments = []moment{"before", "after", "behind"}

// changes are the methods of the calls of which a resize consists.
func changes(method string) bool {
	return slices.Contains([]string{
		"UpdateContainerResources", "UpdatePodSandboxResources", "StopContainer", "CreateContainer", "StartContainer",
	}, method)
}

// reads are the methods of the calls by which podsync finds out what a pod has.
func reads(method string) bool {
	return slices.Contains([]string{"ListContainers", "ContainerStatus", "ListPodSandbox", "PodSandboxStatus"}, method)
}

// hold has the proxy hold podsync's call at this moment of the change of a number.
func (k *killing) hold(number int, at moment) <-chan string {
	if at != "behind" {
		return k.proxy.Hold(number, at == "after", changes)
	}
	return k.proxy.Hold(1, false, func(method string) bool {
		if changes(method) {
			number--
		}
		return number <= 0 && reads(method)
	})
}

// each kills podsync at each call for a resize of the pod of a kind, which grows and shrinks in turn.
func (k *killing) each(i int, at moment) {
	k.T.Helper()
	for number := 1; ; number++ {
		k.renew(i, number, at)
		grows := k.kill(i, most, number, at)
		shrinks := k.kill(i, least, number, at)
		if !grows && !shrinks {
			return
		}
	}
}

// renew puts another pod in place of one whose container starts again for a resize: it would wait longer and longer
// before that.
func (k *killing) renew(i, number int, at moment) {
	k.T.Helper()
	if kinds[i].restarts == "" {
		return
	}
	k.DeletePods(k.names[i])
	k.Wait(scene.Patience, "the end of a pod", k.AreGone(k.names[i]))
	k.names[i] = fmt.Sprintf("%s-%s-%d", kinds[i].name, at, number)
	k.CreatePods(kinds[i].pod(k.Scene, k.names[i], least))
	k.WaitReady(scene.Patience, k.names[i])
}

// kill kills podsync at a call of a number, if there are so many.
func (k *killing) kill(i int, size int64, number int, at moment) (killed bool) {
	k.T.Helper()
	name := k.names[i]
	what := fmt.Sprintf("%s call %d for pod %s to have size %d", at, number, name, size)
	held := k.hold(number, at)
	k.Resize(name, kinds[i].resize(func() int64 { return size }))
	k.changes[name]++
	scene.Await(k.T, scene.Patience, what, func() error {
		select {
		case method := <-held:
			k.Signal(k.T, syscall.SIGKILL, role.Podsync)
			k.methods[method]++
			k.killed++
			killed = true
			return nil
		default:
			return k.AgreeOnResources(name)
		}
	})
	k.proxy.Release()
	scene.Await(k.T, scene.Patience, what+": the resources to agree", func() error { return k.AgreeOnResources(name) })
	p := k.Record.View().Pod(k.Namespace, name)
	keepsContainers(k.Scene, &kinds[i], p, k.changes[name])
	return killed
}
