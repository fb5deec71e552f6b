package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/checkpoint"
)

func TestAPodIsGrantedDevices(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.has("")
		f := n.register(gpu, "gpu.sock", "b", "a", "!c")
		n.has("example.com/gpu 2/3")
		n.wants(n.changes(), "true []")
		pod := podWith("p", 1)
		n.wants(n.allocate(pod, false), "granted app gpu:a")
		n.wants(n.changes(), "false [p]")
		n.wants(n.allocate(pod, false), "granted app gpu:a")
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:b")
		n.wants(n.allocate(podOf("none", asks("app", nil)), false), "granted ")
		n.wants(n.allocate(podWith("r", 1), false), "UnexpectedAdmissionError: Allocate failed due to requested number "+
			"of devices unavailable for example.com/gpu. Requested: 1, Available: 0, which is unexpected")
		if got := f.called(); !slices.Equal(got, []string{"allocate a", "allocate b"}) {
			t.Errorf("the plugin was called: %v", got)
		}
		if got := n.Pod("p").Containers[0].Env["DEVICES"]; got != "a" {
			t.Errorf("the environment has %q", got)
		}
		p := n.Plugins()
		if len(p) != 1 || !p[0].Connected || p[0].InUse != 2 || len(p[0].Devices) != 3 || p[0].Devices[2].Health != 2 {
			t.Errorf("the plugins are %v", p)
		}
		n.restart()
		n.wants(devicesOf(n.Pod("p"))+devicesOf(n.Pod("q")), "app gpu:aapp gpu:b")
		n.Forget("p")
		n.wants(n.allocate(podWith("r", 1), false), "granted app gpu:a")
	})
}

// Devices of init containers are used again; those of sidecars are not.
func TestReuse(t *testing.T) {
	one, two := map[string]int64{gpu: 1}, map[string]int64{gpu: 2}
	for want, containers := range map[string][]v1.Container{
		"init gpu:a; app gpu:a":                  {asks("init", one), asks("app", one)},
		"init gpu:a,b; app gpu:a; app2 gpu:b":    {asks("init", two), asks("app", one), asks("app2", one)},
		"init gpu:a; init2 gpu:a,b; app gpu:a,b": {asks("init", one), asks("init2", two), asks("app", two)},
		"sidecar gpu:a; app gpu:b":               {asks("sidecar", one), asks("app", one)},
		"init gpu:a; sidecar gpu:a; app gpu:b":   {asks("init", one), asks("sidecar", one), asks("app", one)},
		"init gpu:a; sidecar gpu:a; init2 gpu:b; app gpu:b": {
			asks("init", one), asks("sidecar", one), asks("init2", one), asks("app", one),
		},
		"init gpu:a nic:x; app gpu:a; app2 gpu:b nic:x": {
			asks("init", map[string]int64{gpu: 1, nic: 1}), asks("app", one), asks("app2", map[string]int64{gpu: 1, nic: 1}),
		},
		"app gpu:a; app2 gpu:b,c": {asks("app", one), asks("none", nil), asks("app2", two)},
		"init gpu:a; sidecar gpu:a; sidecar2 gpu:b,c; app gpu:d": {
			asks("init", one), asks("sidecar", one), asks("sidecar2", two), asks("app", one),
		},
	} {
		t.Run(want, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNode(t)
				n.register(gpu, "gpu.sock", "a", "b", "c", "d")
				n.register(nic, "nic.sock", "x", "y")
				pod := podOf("p", containers...)
				n.wants(n.allocate(pod, false), "granted "+want)
				n.wants(n.allocate(pod, false), "granted "+want)
				n.restart()
				n.wants(n.allocate(pod, false), "granted "+want)
			})
		})
	}
}

func TestPreferredDevices(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.plugin("gpu.sock")
		f.prefers = true
		f.prefer = func([]string, []string, int) []string { return []string{"none", "d", "d", "a", "c"} }
		n.register(gpu, "gpu.sock", "a", "b", "c", "d", "e")
		n.wants(n.allocate(podOf("p", asks("init", map[string]int64{gpu: 1}), asks("app", map[string]int64{gpu: 3})), false),
			"granted init gpu:d; app gpu:a,c,d")
		// All that are free need no question, and a short answer is completed.
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:b")
		n.wants(n.allocate(podWith("r", 1), false), "granted app gpu:e")
		if got, want := f.called(), []string{
			"prefer 1 of a,b,c,d,e with ", "prefer 3 of a,b,c,d,e with d", "allocate d", "allocate a,c,d",
			"prefer 1 of b,e with ", "allocate b", "allocate e",
		}; !slices.Equal(got, want) {
			t.Errorf("the plugin was called: %q, want %q", got, want)
		}
		n.Forget("p", "q", "r")
		f.refuses = errors.New("no")
		n.wants(n.allocate(podWith("s", 1), false),
			"UnexpectedAdmissionError: Allocate failed due to no, which is unexpected")
	})
}

func TestAPodWaitsForAPluginThatIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "b")
		pod := podWith("p", 1)
		n.wants(n.allocate(pod, false), "granted app gpu:a")
		n.restartAfter(f)
		const wait = "wait for example.com/gpu: the device plugin of example.com/gpu is away: failed to dial device " +
			"plugin: connection refused"
		n.wants(n.allocate(pod, false), wait)
		n.wants(n.allocate(podWith("q", 1), false), wait)
		n.wants(n.allocate(podWith("new", 1), true), "granted ")
		// It keeps its devices meanwhile.
		time.Sleep(time.Minute)
		n.register(gpu, "other.sock", "a", "b")
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:b")
		n.wants(n.allocate(pod, false), "granted app gpu:a")
	})
}

// restartAfter ends a plugin while the manager does not run.
func (n *node) restartAfter(f *fake) {
	n.end()
	f.dies()
	n.start()
}

func TestNoPodWaitsForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a")
		f.dies()
		synctest.Wait()
		const rejected = "UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate " +
			"unhealthy devices example.com/gpu, which is unexpected"
		for range 3 {
			if got := n.allocate(podWith("p", 1), false); !strings.HasPrefix(got, "wait for example.com/gpu") {
				t.Fatal(got)
			}
			time.Sleep(time.Minute)
		}
		n.wants(n.allocate(podWith("p", 1), false), rejected)
		time.Sleep(3 * time.Minute) // the resource is not registered any more
		if got := n.allocate(podWith("q", 1), false); !strings.HasPrefix(got, "wait") {
			t.Error(got)
		}
		time.Sleep(3 * time.Minute)
		n.wants(n.allocate(podWith("q", 1), false), "UnexpectedAdmissionError: Allocate failed due to cannot allocate "+
			"unregistered device example.com/gpu, which is unexpected")
	})
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.options.Wait = 0
		n.restart()
		n.register(gpu, "gpu.sock").dies()
		synctest.Wait()
		if got := n.allocate(podWith("p", 1), false); !strings.HasPrefix(got, "UnexpectedAdmissionError") {
			t.Errorf("without a time to wait: %s", got)
		}
	})
}

func TestRefusals(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "b")
		pod := podWith("p", 1)
		n.wants(n.allocate(pod, false), "granted app gpu:a")
		const begin, end = "UnexpectedAdmissionError: Allocate failed due to ", ", which is unexpected"
		n.wants(n.allocate(podWith("p", 2), false),
			begin+`pod "p" container "app" changed request for resource "example.com/gpu" from 1 to 2`+end)
		f.reports("!a", "b")
		synctest.Wait()
		n.wants(n.allocate(pod, false), begin+
			"previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu"+end)
		n.wants(n.allocate(pod, true), "granted app gpu:!a")
		f.reports("!a", "!b")
		synctest.Wait()
		n.wants(n.allocate(podWith("q", 1), false), begin+
			"no healthy devices present; cannot allocate unhealthy devices example.com/gpu"+end)
		n.wants(n.allocate(podWith("q", 1), true), "granted ")
		f.reports("a", "b")
		synctest.Wait()
		f.refuses = status.Error(codes.Internal, "broken")
		n.wants(n.allocate(podWith("q", 1), false), begin+"rpc error: code = Internal desc = broken"+end)
		n.wants(n.allocate(podWith("q", 1<<40), false), begin+"requested number of devices unavailable for "+
			"example.com/gpu. Requested: 1099511627776, Available: 1"+end)
		f.refuses = nil
		// Nothing of that is kept.
		n.wants(n.allocate(podWith("q", 1), true), "granted app gpu:b")
	})
}

// A plugin that hangs holds up the pods that need it, for a while, and no other.
func TestAPluginThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(nic, "nic.sock", "x", "y")
		f := n.register(gpu, "gpu.sock", "a", "b", "c")
		f.hangs = true
		answers := make(chan string, 2)
		begin := time.Now()
		for _, uid := range []types.UID{"p", "q"} {
			go func() {
				answers <- n.allocateWith(t.Context(), podWith(uid, 1), Placed{UIDs: []types.UID{"p", "q"}}, false)
			}()
		}
		synctest.Wait()
		n.wants(n.allocateWith(t.Context(), podOf("r", asks("app", map[string]int64{nic: 1})),
			Placed{UIDs: []types.UID{"p", "q"}}, false), "granted app nic:x")
		if time.Since(begin) != 0 {
			t.Errorf("another pod waited for %s", time.Since(begin))
		}
		// Its own devices are not given to two pods that ask at the same time.
		n.wants(n.allocateWith(t.Context(), podWith("s", 2), Placed{UIDs: []types.UID{"p", "q", "r"}}, false),
			"UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for example.com/gpu. "+
				"Requested: 2, Available: 1, which is unexpected")
		for range 2 {
			if got := <-answers; !strings.HasPrefix(got, "wait for example.com/gpu: the device plugin of example.com/gpu "+
				"does not answer: rpc error: code = DeadlineExceeded") {
				t.Error(got)
			}
		}
		if after := time.Since(begin); after != 30*time.Second {
			t.Errorf("the answer came after %s", after)
		}
		f.hangs = false
		n.wants(n.allocateWith(t.Context(), podWith("s", 3), Placed{}, false), "granted app gpu:a,b,c")
	})
}

func TestACallerThatGoesAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a")
		f.hangs = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n.wants(n.allocateWith(ctx, podWith("p", 1), Placed{}, false), "error context deadline exceeded")
		f.hangs = false
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:a")
	})
}

// A pod that is gone while its plugin is asked has nothing in the end.
func TestAPodThatGoesMeanwhile(t *testing.T) {
	for name, goes := range map[string]func(n *node){
		"forgotten": func(n *node) { n.Forget("p") },
		"without a place": func(n *node) {
			n.wants(n.allocateWith(n.t.Context(), podOf("q", asks("app", nil)), Placed{}, false), "granted ")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNode(t)
				f := n.register(gpu, "gpu.sock", "a")
				f.hangs, f.ends = true, make(chan struct{})
				done := make(chan string)
				go func() { done <- n.allocateWith(t.Context(), podWith("p", 1), Placed{}, false) }()
				synctest.Wait()
				time.Sleep(time.Second)
				goes(n)
				close(f.ends)
				n.wants(<-done, "error the pod is gone")
				if p := n.Pod("p"); p != nil {
					t.Errorf("it has %v", p)
				}
				n.wants(n.allocate(podWith("r", 1), false), "granted app gpu:a")
			})
		})
	}
}

// TestCallsMayOvertake: a list of pods that is older than a grant does not free it.
func TestCallsMayOvertake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "gpu.sock", "a", "b")
		old := time.Now()
		time.Sleep(time.Second)
		n.wants(n.allocateWith(t.Context(), podWith("p", 1), Placed{At: time.Now()}, false), "granted app gpu:a")
		n.wants(n.allocateWith(t.Context(), podWith("q", 1), Placed{At: old}, false), "granted app gpu:b")
		n.wants(devicesOf(n.Pod("p")), "app gpu:a")
		time.Sleep(time.Second)
		n.wants(n.allocateWith(t.Context(), podWith("q", 1), Placed{At: time.Now()}, false), "granted app gpu:b")
		if p := n.Pod("p"); p != nil {
			t.Errorf("a pod without a place has %v", p)
		}
	})
}

func TestAWriteThatFailsGrantsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "gpu.sock", "a")
		if err := os.RemoveAll(n.folder); err != nil {
			t.Fatal(err)
		}
		if got := n.allocate(podWith("p", 1), false); !strings.HasPrefix(got, "error ") {
			t.Error(got)
		}
		if p := n.Pod("p"); p != nil {
			t.Errorf("the pod has %v", p)
		}
		if err := os.Mkdir(n.folder, 0o750); err != nil {
			t.Fatal(err)
		}
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:a")
	})
}

func TestCapacityStaysForAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "!b")
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
		n.changes()
		f.dies()
		n.has("example.com/gpu 0/2")
		n.wants(n.changes(), "true [p]")
		n.wants(devicesOf(n.Pod("p")), "app gpu:?a")
		time.Sleep(5*time.Minute - 1)
		n.has("example.com/gpu 0/2")
		time.Sleep(time.Nanosecond)
		n.has("example.com/gpu 0/0")
		n.wants(n.changes(), "true []")
		time.Sleep(time.Minute)
		_, c, err := checkpoint.Open(n.folder)
		if err != nil || len(c.Registered) != 0 || len(c.Plugins) != 0 || len(c.Entries) != 1 {
			t.Errorf("the file has %+v, %v", c, err)
		}
		n.register(gpu, "gpu.sock", "a")
		n.has("example.com/gpu 1/1")
		n.wants(n.changes(), "true [p]")
		for range 3 {
			f.dies()
			n.has("example.com/gpu 0/1")
			time.Sleep(time.Minute)
			n.register(gpu, "gpu.sock", "a")
			time.Sleep(10 * time.Minute)
			n.has("example.com/gpu 1/1")
		}
		if _, c, err := checkpoint.Open(n.folder); err != nil || len(c.Registered) != 1 || len(c.Plugins) != 1 {
			t.Errorf("the file has %+v, %v", c, err)
		}
	})
}

// A plugin that registers again replaces itself, and what its old connection does counts no more.
func TestAPluginReplacesItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "b")
		old := f.conns[0]
		f.list = nil
		n.changes()
		n.register(gpu, "gpu.sock")
		select {
		case <-old.closed:
		default:
			t.Error("the old connection is open")
		}
		n.has("example.com/gpu 2/2")
		n.wants(n.changes(), "false []")
		f.reports("b", "c", "d")
		n.has("example.com/gpu 3/3")
		if p := n.Plugins(); len(p) != 1 || !p[0].Connected {
			t.Errorf("the plugins are %v", p)
		}
	})
}

func TestTheLastPluginIsAsked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		first := n.register(gpu, "1.sock", "a", "b")
		second := n.register(gpu, "2.sock")
		n.has("example.com/gpu 2/2") // it has not said what it has
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
		second.reports("b", "c", "d")
		n.has("example.com/gpu 3/3")
		n.wants(devicesOf(n.Pod("p")), "app gpu:?a")
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:b")
		second.dies()
		n.has("example.com/gpu 2/2")
		first.reports("!a", "b")
		n.has("example.com/gpu 1/2")
		n.register(gpu, "3.sock", "e")
		n.register(gpu, "1.sock")
		n.has("example.com/gpu 1/2")
		if got := fmt.Sprint(first.called(), second.called()); got != "[allocate a] [allocate b]" {
			t.Errorf("the plugins were called: %s", got)
		}
	})
}

// TestARestartDialsFirst: the node's resources are not gone in between.
func TestARestartDialsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(nic, "nic.sock", "x").dies()
		n.register(gpu, "gpu.sock", "a", "b")
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
		time.Sleep(time.Minute)
		n.end()
		n.changes()
		f := n.plugin("gpu.sock")
		f.mu.Lock()
		f.list = nil
		f.mu.Unlock()
		n.counts = nil
		f.dials = make(chan struct{})
		n.start()
		n.has("nothing")
		n.register(gpu, "gpu.sock") // it also does so by itself
		n.has("nothing")
		own := f.conns[len(f.conns)-1]
		close(f.dials)
		synctest.Wait()
		select {
		case <-own.closed:
			t.Error("the connection that the plugin has asked for was replaced")
		default:
		}
		if got := n.changes(); strings.HasPrefix(got, "true") {
			t.Errorf("before it is known what the node has, that has changed: %s", got)
		}
		n.register(nic, "other.sock", "x")
		if got := n.changes(); strings.HasPrefix(got, "true") {
			t.Errorf("with another plugin: %s", got)
		}
		f.reports("a", "b")
		n.has("example.com/gpu 2/2, example.com/nic 1/1")
		n.wants(strings.Join(n.counts, "; "), "example.com/gpu 2/2, example.com/nic 1/1")
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
	})
}

// TestARegistrationOutlivesAKill: a plugin that was told that it is registered does not register again, since the socket
// stays. So the file has it by then, however short before another write was.
func TestARegistrationOutlivesAKill(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "1.sock", "a")
		for _, endpoint := range []string{"2.sock", "1.sock"} {
			if err := n.Register(t.Context(), gpu, endpoint, []string{"v1beta1"}); err != nil {
				t.Fatal(err)
			}
			// As a process would that starts now.
			_, content, err := checkpoint.Open(n.folder)
			if err != nil || len(content.Plugins) == 0 {
				t.Fatal(content, err)
			}
			if last := content.Plugins[len(content.Plugins)-1]; last.Endpoint != n.path(endpoint) {
				t.Errorf("the plugin of %s has registered, and the last in the file is %+v", endpoint, last)
			}
		}
	})
}

func TestARestartDoesNotWaitForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "b")
		n.end()
		f.list = nil
		n.start()
		time.Sleep(30*time.Second - 1)
		n.has("nothing")
		time.Sleep(time.Nanosecond)
		n.has("example.com/gpu 0/0")
		f.reports("a")
		n.has("example.com/gpu 1/1")
	})
}

func TestHealthChangesAreReported(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "gpu.sock", "a", "b", "c")
		n.allocate(podWith("p", 1), false)
		n.allocate(podWith("q", 1), false)
		n.changes()
		f.reports("a", "!b", "c")
		n.wants(n.changes(), "true [q]")
		f.reports("a", "!b", "!c")
		n.wants(n.changes(), "true []")
		f.reports("a", "!b", "!c")
		n.wants(n.changes(), "false []")
		f.reports("!b", "c")
		n.wants(n.changes(), "true [p]")
		n.wants(devicesOf(n.Pod("p"))+", "+devicesOf(n.Pod("q")), "app gpu:?a, app gpu:!b")
	})
}

func TestPrepare(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.plugin("gpu.sock")
		f.prepares = true
		n.register(gpu, "gpu.sock", "a", "b")
		other := n.register(nic, "nic.sock", "x")
		pod := podOf("p", asks("app", map[string]int64{gpu: 2, nic: 1}), asks("other", map[string]int64{}))
		n.wants(n.allocate(pod, false), "granted app gpu:a,b nic:x")
		if !n.Pod("p").Containers[0].Prepare {
			t.Error("the container is not to be prepared")
		}
		if err := n.Prepare(t.Context(), "p", "app"); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(f.called(), other.called()); got != "[allocate a,b prepare a,b] [allocate x]" {
			t.Errorf("the plugins were called: %s", got)
		}
		for _, c := range [][2]string{{"p", "other"}, {"q", "app"}} {
			if err := n.Prepare(t.Context(), types.UID(c[0]), c[1]); !errors.Is(err, errNothing) {
				t.Errorf("%v: %v", c, err)
			}
		}
		f.refuses = errors.New("no")
		if err := n.Prepare(t.Context(), "p", "app"); !errors.Is(err, f.refuses) {
			t.Error(err)
		}
		n.restartAfter(f)
		if !n.Pod("p").Containers[0].Prepare {
			t.Error("after a restart the container is not to be prepared")
		}
		if err := n.Prepare(t.Context(), "p", "app"); err == nil || err.Error() != "the device plugin of example.com/gpu is "+
			"to prepare the container, and is away: failed to dial device plugin: connection refused" {
			t.Error(err)
		}
	})
}

func TestRegistrationsAreChecked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		for _, c := range []struct {
			resource string
			versions []string
			want     string
		}{
			{gpu, []string{"v1"}, `requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]`},
			{gpu, []string{"v1", "v2"},
				`manager version, v1beta1, is not among plugin supported versions ["v1" "v2"]`},
			{gpu, nil, `manager version, v1beta1, is not among plugin supported versions []`},
			{"cpu", []string{"v1beta1"}, `the ResourceName "cpu" is invalid`},
			{"kubernetes.io/x", []string{"v1beta1"}, `the ResourceName "kubernetes.io/x" is invalid`},
			{"requests.example.com/x", []string{"v1beta1"}, `the ResourceName "requests.example.com/x" is invalid`},
			{"example.com/a b", []string{"v1beta1"}, `the ResourceName "example.com/a b" is invalid`},
		} {
			if err := n.Register(t.Context(), c.resource, "x.sock", c.versions); err == nil || err.Error() != c.want {
				t.Errorf("%s %v: %v, want %s", c.resource, c.versions, err, c.want)
			}
		}
		n.plugin("down.sock").down = true
		if err := n.Register(t.Context(), gpu, "down.sock", []string{"v0", "v1beta1"}); err == nil {
			t.Error("a plugin that is not there registers")
		}
		n.has("")
		for i := range maxPlugins {
			n.register(gpu, fmt.Sprintf("%d.sock", i))
		}
		if err := n.Register(t.Context(), gpu, "more.sock", []string{"v1beta1"}); err == nil ||
			err.Error() != "there are 256 device plugins, more are not possible" {
			t.Error(err)
		}
		n.register(gpu, "0.sock")
		if got := testutil.ToFloat64(n.Manager.metrics.registrations.WithLabelValues(gpu)); got != maxPlugins+3 {
			t.Errorf("%v registrations are counted", got)
		}
		n.end()
		if err := n.Register(t.Context(), gpu, "0.sock", []string{"v1beta1"}); !errors.Is(err, errStopped) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestDeregister(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.register(gpu, "/run/gpu.sock", "a")
		n.Deregister(gpu, "/run/other.sock")
		n.Deregister(nic, "/run/gpu.sock")
		n.has("example.com/gpu 1/1")
		n.Deregister(gpu, "/run/gpu.sock")
		n.has("example.com/gpu 0/1")
		<-f.conns[0].closed
		if p := n.Plugins(); len(p) != 1 || p[0].Connected || p[0].Problem != "its socket is gone" {
			t.Errorf("the plugins are %v", p)
		}
	})
}

func TestABadFileIsSetAside(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.end()
		path := filepath.Join(n.folder, checkpoint.Name)
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		n.start()
		if Needed(n.folder) {
			t.Error("it is needed")
		}
		n.register(gpu, "gpu.sock", "a")
		if !Needed(n.folder) {
			t.Error("it is not needed")
		}
		if _, err := os.Stat(path + ".bad"); err != nil {
			t.Error(err)
		}
	})
}

// Other resources and claims of the scheduler's are not a plugin's.
func TestClaimsAreNoneOfAPlugins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "gpu.sock", "a", "b")
		pod := podOf("p", asks("app", map[string]int64{gpu: 1, "example.com/unknown": 1}),
			asks("app2", map[string]int64{gpu: 1}))
		pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
			RequestMappings: []v1.ContainerExtendedResourceRequest{{ContainerName: "app", ResourceName: gpu}},
		}
		n.wants(n.allocate(pod, false), "granted app2 gpu:a")
	})
}

// TestTheKubeletsFile: a pod of the kubelet keeps its devices, and waits for a plugin whose socket is not known.
func TestTheKubeletsFile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "gpu.sock", "a", "b")
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
		n.end()
		f, c, err := checkpoint.Open(n.folder)
		if err != nil {
			t.Fatal(err)
		}
		c.Plugins = nil
		if err := f.Store(c); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.has("example.com/gpu 0/0")
		n.wants(n.allocate(podWith("p", 1), true), "granted app gpu:?a")
		n.wants(n.allocate(podWith("q", 1), false), "wait for example.com/gpu: the device plugin of example.com/gpu is "+
			"away: it has not registered since the start")
		if p := n.Plugins(); len(p) != 1 || p[0].Endpoint != "" || p[0].Connected {
			t.Errorf("the plugins are %v", p)
		}
		n.register(gpu, "gpu.sock", "a", "b")
		n.wants(n.allocate(podWith("q", 1), false), "granted app gpu:b")
	})
}

func TestAllocatable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(nic, "nic.sock", "!x")
		n.register(gpu, "gpu.sock", "bb", "!a", "c")
		all := n.Allocatable()
		if len(all) != 1 || all[0].Resource != gpu || len(all[0].Devices) != 2 || all[0].Devices[0].Id != "bb" ||
			!slices.Equal(all[0].Devices[1].NumaNodes, []int64{1}) {
			t.Errorf("%v", all)
		}
	})
}
