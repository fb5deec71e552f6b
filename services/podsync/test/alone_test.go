package test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// is waits until a reader has these pods, with these states, and of no other.
func (r *reader) is(t *testing.T, want map[string]string) {
	t.Helper()
	defer func() {
		if got := r.reported(); t.Failed() {
			t.Logf("reported %v, want %v", got, want)
		}
	}()
	proctest.Await(t, soon, "what podsync has published is all that is",
		func() bool { return maps.Equal(r.reported(), want) })
}

// TestWithoutABus: pods run without it, and all of it is reported when it is there, also by a bus that has lost
// everything.
func TestWithoutABus(t *testing.T) {
	n := newNode(t)
	n.StopBus()
	n.put("a")
	n.start()
	a := n.runs("a")
	n.StartBus()
	r := n.reads()
	r.is(t, map[string]string{"a": state(a)})

	n.StopBus()
	n.put("b")
	b := n.runs("b")
	n.remove("a")
	n.gone("a")
	if err := os.RemoveAll(filepath.Join(n.Dir(), "bus")); err != nil {
		t.Fatal(err)
	}
	n.StartBus()
	r.is(t, map[string]string{"b": state(b)})
	n.reads().is(t, map[string]string{"b": state(b)}) // one who comes later
}

// TestPeersThatHang: servers accept connections and do not answer, and clients hold theirs. Nothing waits.
func TestPeersThatHang(t *testing.T) {
	n := newNode(t)
	s := n.Service()
	for _, r := range []role.Role{role.PLEG, role.Prober, role.NodeStatus, role.NodeAPI, role.Up} {
		l, err := net.Listen("unix", s.Socket(r))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	n.start()
	n.put("a")
	n.runs("a")
	for _, socket := range []string{s.Socket(role.Podsync), s.CRISocket(role.PLEG), s.MetricsSocket(role.Podsync)} {
		for range 50 {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	n.put("b")
	b := n.runs("b")
	// No pleg looks at the runtime for podsync, which then does so itself.
	if err := n.runtime.ExitContainer(b, 1); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if again := n.runs("b"); again == b {
		t.Error("an exited container runs")
	}
	t.Logf("an exit that no pleg reports is followed by a restart after %s", time.Since(began).Round(time.Millisecond))
	n.remove("a")
	n.gone("a")
}

// TestAPullThatHangsHoldsUpItsPodAlone: no other pod waits for it, nor does podsync's end.
func TestAPullThatHangsHoldsUpItsPodAlone(t *testing.T) {
	n := newNode(t)
	n.runtime.SetPull("example.com/slow:1", fake.Pull{Hang: true})
	n.write("slow.yaml", strings.Replace(manifest("slow"), image, "example.com/slow:1", 1))
	p := n.start()
	proctest.Await(t, soon, "the pull has begun", func() bool { return n.runtime.InFlight("PullImage") == 1 })
	n.put("a")
	n.runs("a")
	n.remove("slow")
	proctest.Await(t, soon, "the pull has ended with its pod",
		func() bool { return n.runtime.InFlight("PullImage") == 0 })
	n.put("b")
	n.runs("b")

	// Nor does one hold up podsync's end.
	n.write("slow.yaml", strings.Replace(manifest("slow"), image, "example.com/slow:1", 1))
	proctest.Await(t, soon, "the pull has begun again", func() bool { return n.runtime.InFlight("PullImage") == 1 })
	p.Signal(syscall.SIGTERM)
	if err := p.End(soon); err != nil {
		t.Errorf("podsync ended with %v", err)
	}
}

// TestAnEndLeavesThePods: by SIGTERM or SIGKILL, and the next podsync takes them over as they are.
func TestAnEndLeavesThePods(t *testing.T) {
	n := newNode(t)
	n.put("a")
	p := n.start()
	a := n.runs("a")
	r := n.reads()
	r.is(t, map[string]string{"a": state(a)})
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		n.runtime.ForgetCalls()
		p.Signal(s)
		if err := p.End(soon); s == syscall.SIGTERM && err != nil {
			t.Errorf("after %v podsync ended with %v", s, err)
		}
		if ids := n.running("a"); len(ids) != 1 || ids[0] != a {
			t.Errorf("%v left %v running, want %s", s, ids, a)
		}
		p = n.start()
		name := "after-" + fmt.Sprint(int(s))
		n.put(name)
		other := n.runs(name)
		r.is(t, map[string]string{"a": state(a), name: state(other)})
		n.remove(name)
		n.gone(name)
		r.is(t, map[string]string{"a": state(a)})
		for _, c := range n.runtime.Calls("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox") {
			if text := fmt.Sprint(c.Request); strings.Contains(text, a) {
				t.Errorf("after %v: %s %s", s, c.Method, text)
			}
		}
	}
}

// TestOnlyOne: another podsync of the same runtime folder, or of the same root folder, ends and says why; the first one
// is not touched. Its place is free when it has died.
func TestOnlyOne(t *testing.T) {
	n := newNode(t)
	n.put("a")
	first := n.start()
	a := n.runs("a")
	elsewhere, other := filepath.Join(t.TempDir(), "root"), bustest.New(t)
	unmountRoot(t, elsewhere)
	for name, c := range map[string]struct{ flag, want string }{
		"the same root folder": {"--runtime-dir=" + other.Dir(), "--root-dir=" + n.root +
			": another podsync works there"},
		"the same runtime folder": {"--root-dir=" + elsewhere, "another server answers on the socket"},
	} {
		second := n.start(c.flag)
		if err := second.End(soon); err == nil || !strings.Contains(second.Log.String(), c.want) {
			t.Errorf("%s: ended with %v, want %q:\n%s", name, err, c.want, second.Log)
		}
	}
	n.put("b")
	n.runs("b")
	first.Signal(syscall.SIGKILL)
	_ = first.End(soon) // by the signal
	n.start()
	n.put("c")
	n.runs("c")
	if ids := n.running("a"); len(ids) != 1 || ids[0] != a {
		t.Errorf("pod a has %v, had %s", ids, a)
	}
}

// TestWrongConfiguration: what podsync does not know it does not pass over.
func TestWrongConfiguration(t *testing.T) {
	n := newNode(t)
	n.put("a")
	for flag, want := range map[string]string{
		"--config=" + n.config("staticPodPaht: /etc"):  `staticPodPaht`,
		"--config=" + n.config("maxPods: many"):        `maxPods`,
		"--config=" + filepath.Join(n.Dir(), "absent"): `absent`,
		"--runtime-calls=0":                            `--runtime-calls=0`,
		"--no-such-flag":                               `no-such-flag`,
	} {
		p := n.start(flag)
		if err := p.End(soon); err == nil || !strings.Contains(p.Log.String(), want) {
			t.Errorf("%s: ended with %v, want %q:\n%s", flag, err, want, p.Log)
		}
	}
	if ids := n.running("a"); len(ids) > 0 {
		t.Errorf("a podsync that refused its configuration started %v", ids)
	}
}

// TestABrokenManifest is reported, and harms no other: neither at the start nor later.
func TestABrokenManifest(t *testing.T) {
	n := newNode(t)
	for file, text := range map[string]string{
		"noyaml.yaml":      "{",
		"nopod.yaml":       "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}\n",
		"binary.yaml":      "\x00\xff\x00",
		"nocontainer.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: nocontainer}\nspec: {}\n",
		"empty.yaml":       "",
	} {
		n.write(file, text)
	}
	if err := os.Symlink("/nowhere", filepath.Join(n.manifests, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	n.put("a")
	p := n.start()
	a := n.runs("a")
	for _, file := range []string{"noyaml.yaml", "nopod.yaml", "binary.yaml", "nocontainer.yaml"} {
		proctest.Await(t, soon, "the log names "+file, func() bool { return strings.Contains(p.Log.String(), file) })
	}
	n.put("b")
	n.runs("b")
	n.write("b.yaml", "{")
	n.gone("b") // at a relist
	n.put("b")
	n.runs("b")
	n.write("nocontainer.yaml", manifest("nocontainer"))
	n.runs("nocontainer")
	if ids := n.running("a"); len(ids) != 1 || ids[0] != a {
		t.Errorf("pod a has %v, had %s", ids, a)
	}
}

// TestTwoSourcesWantOneName: the one that came first runs, the other begins when it is gone, and never two at once.
func TestTwoSourcesWantOneName(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	serves := manifest("a", "  labels: {from: url}\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = w.Write([]byte(serves))
	}))
	t.Cleanup(server.Close)
	n.put("a")
	atOnce := n.counts("a")
	p := n.start("--config=" + n.config("staticPodURL: "+server.URL, "httpCheckFrequency: 1s"))
	n.runs("a")
	waits := "static pod waits for the end of another of its name"
	proctest.Await(t, soon, "the other waits", func() bool { return strings.Contains(p.Log.String(), waits) })
	first := n.runs("a")

	// Whichever came first: without both there is none, with the one that is left there is another.
	n.remove("a")
	mu.Lock()
	serves = manifest("b")
	mu.Unlock()
	n.runs("b")
	n.gone("a")
	n.put("a")
	second := n.runs("a")
	if most := atOnce.most(second); most != 1 {
		t.Errorf("%d of one name ran at one time", most)
	}
	if first == second {
		t.Error("a pod without its manifests runs on")
	}
}
