package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
		n.Leave("p")
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
		n.Leave("p", "q", "r")
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

// A pod that has no place any more while its plugin is asked has nothing in the end. That readers of the bus do not
// know a pod yet for which podsync asks says nothing.
func TestAPodThatGoesMeanwhile(t *testing.T) {
	for want, goes := range map[string]func(n *node){
		"granted app gpu:a": func(n *node) { n.Leave("p") },
		"error the pod is gone": func(n *node) {
			n.wants(n.allocateWith(n.t.Context(), podOf("q", asks("app", nil)), Placed{}, false), "granted ")
		},
	} {
		t.Run(want, func(t *testing.T) {
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
				n.wants(<-done, want)
				if has := n.Pod("p") != nil; has != (want == "granted app gpu:a") {
					t.Errorf("it has %v", n.Pod("p"))
				}
				n.wants(n.allocateWith(t.Context(), podWith("r", 1), Placed{}, false), "granted app gpu:a")
			})
		})
	}
}

// TestTheBusFreesNoDevice: who controls the bus can hide a pod that runs. No other gets its devices while podsync says
// that the pod has its place.
func TestTheBusFreesNoDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		n.register(gpu, "gpu.sock", "a")
		inUse := func() int32 { return n.Plugins()[0].InUse }
		n.wants(n.allocate(podWith("p", 1), false), "granted app gpu:a")
		n.Leave("p", "none")
		if n.Pod("p") != nil || len(n.Pods()) != 0 || inUse() != 0 {
			t.Errorf("it is shown with %v, %v, and %d devices are in use", n.Pod("p"), n.Pods(), inUse())
		}
		placed := Placed{UIDs: []types.UID{"p", "q"}, At: time.Now().Add(time.Second)}
		n.wants(n.allocateWith(t.Context(), podWith("q", 1), placed, false), "UnexpectedAdmissionError: Allocate failed due "+
			"to requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0, which is unexpected")
		n.wants(devicesOf(n.Pod("p")), "app gpu:a")
		if inUse() != 1 {
			t.Errorf("%d devices are in use", inUse())
		}
		n.Leave("p")
		n.restart() // the file has both
		if n.Pod("p") != nil {
			t.Errorf("after a restart it is shown with %v", n.Pod("p"))
		}
		n.wants(n.allocateWith(t.Context(), podWith("p", 1), Placed{}, true), "granted app gpu:a")
		n.Leave("p")
		placed = Placed{UIDs: []types.UID{"q"}, At: time.Now().Add(time.Minute)}
		n.wants(n.allocateWith(t.Context(), podWith("q", 1), placed, false), "granted app gpu:a")
	})
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
