package devices

import (
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

	"github.com/microlet/microlet/services/resources/internal/devices/internal/checkpoint"
)

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

// TestARegistrationOutlivesAKill: a plugin that knows that it is registered does not register again, since the socket
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
