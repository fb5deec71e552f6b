package pluginregistration

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const limit = time.Minute

// plugin serves the registration API.
type plugin struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
	// hang is closed when GetInfo may answer. Nil: at once.
	hang <-chan struct{}

	mu     sync.Mutex
	asked  int
	status []*registerapi.RegistrationStatus
}

func (p *plugin) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
	if p.hang != nil {
		select {
		case <-p.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (
	*registerapi.RegistrationStatusResponse, error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = append(p.status, s)
	return &registerapi.RegistrationStatusResponse{}, nil
}

// results returns the errors that the plugin got, "" for a registration.
func (p *plugin) results() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, s := range p.status {
		if s.GetPluginRegistered() != (s.GetError() == "") {
			all = append(all, "contradiction")
		}
		all = append(all, s.GetError())
	}
	return all
}

func driver(name string) *plugin {
	return &plugin{info: &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: name}}
}

// serve has the plugin listen at path until stop is called, which removes the socket.
func (p *plugin) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// handler notes its calls.
type handler struct {
	invalid, failing error

	mu    sync.Mutex
	calls []string
}

func (h *handler) note(what string, p Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, what+" "+p.Name)
}

func (h *handler) Validate(context.Context, Plugin) error { return h.invalid }

func (h *handler) Register(_ context.Context, p Plugin) error {
	h.note("register", p)
	return h.failing
}

func (h *handler) Deregister(_ context.Context, p Plugin) { h.note("deregister", p) }

func (h *handler) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.calls, ", ")
}

func (h *handler) await(t *testing.T, want string) {
	t.Helper()
	proctest.Await(t, limit, "the handler is called: "+want, func() bool { return h.all() == want })
}

// start runs a manager for drivers until stop is called.
func start(t *testing.T, h *handler) (dir string, metrics *prometheus.Registry, stop func()) {
	t.Helper()
	// Not the test's folder: its path may be too long for a socket.
	root, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir = filepath.Join(root, "plugins_registry")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	metrics = prometheus.NewRegistry()
	m := New(Options{
		Root: root, Handlers: map[string]Handler{registerapi.CSIPlugin: h},
		Log: slog.New(slog.DiscardHandler), Metrics: metrics,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return dir, metrics, stop
}

func TestPluginsComeAndGo(t *testing.T) {
	h := &handler{}
	dir, metrics, stop := start(t, h)
	path := filepath.Join(dir, "a.sock")
	a := driver("a")
	end := a.serve(t, path)
	h.await(t, "register a")
	proctest.Await(t, limit, "the plugin gets a result", func() bool { return len(a.results()) == 1 })
	if got := a.results(); got[0] != "" {
		t.Errorf("the plugin gets %q", got)
	}
	proctest.Await(t, limit, "the metric has it in both states", func() bool {
		n, err := testutil.GatherAndCount(metrics, "plugin_manager_total_plugins")
		return err == nil && n == 2
	})
	end()
	h.await(t, "register a, deregister a")
	driver("a2").serve(t, path)
	h.await(t, "register a, deregister a, register a2")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	driver("b").serve(t, filepath.Join(dir, "sub", "b.sock"))
	h.await(t, "register a, deregister a, register a2, register b")
	stop()
	if got := h.all(); strings.Contains(got, "deregister a2") || strings.Contains(got, "deregister b") {
		t.Errorf("podsync's end takes plugins back: %s", got)
	}
}

// A plugin that restarts may put its new socket in place before the old one is seen to go.
func TestAReplacedPluginIsTakenBackFirst(t *testing.T) {
	h := &handler{}
	dir, _, _ := start(t, h)
	driver("old").serve(t, filepath.Join(dir, "a.sock"))
	h.await(t, "register old")
	driver("new").serve(t, filepath.Join(dir, ".new"))
	if err := os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "a.sock")); err != nil {
		t.Fatal(err)
	}
	h.await(t, "register old, deregister old, register new")
}

func TestTheFolderMayVanish(t *testing.T) {
	h := &handler{}
	dir, _, _ := start(t, h)
	driver("a").serve(t, filepath.Join(dir, "a.sock"))
	h.await(t, "register a")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.await(t, "register a, deregister a")
	proctest.Await(t, limit, "the folder is there again", func() bool {
		_, err := os.Stat(dir)
		return err == nil
	})
	driver("b").serve(t, filepath.Join(dir, "b.sock"))
	h.await(t, "register a, deregister a, register b")
}

func TestAPluginThatHangsDelaysItselfAlone(t *testing.T) {
	h := &handler{}
	dir, _, _ := start(t, h)
	answer := make(chan struct{})
	hung := driver("hung")
	hung.hang = answer
	hung.serve(t, filepath.Join(dir, "a.sock"))
	makeSocket(t, filepath.Join(dir, "b.sock")) // no process listens
	driver("c").serve(t, filepath.Join(dir, "c.sock"))
	h.await(t, "register c")
	proctest.Await(t, limit, "the hung plugin is asked again", func() bool {
		hung.mu.Lock()
		defer hung.mu.Unlock()
		return hung.asked > 1
	})
	close(answer)
	h.await(t, "register c, register hung")
}

func TestARefusedPluginIsTold(t *testing.T) {
	stranger := driver("a")
	stranger.info.Type = "Other"
	climbing := driver("../a")
	for name, c := range map[string]struct {
		plugin  *plugin
		handler *handler
		want    string
	}{
		"a type without a handler": {
			stranger, &handler{}, "RegisterPlugin error -- no handler registered for plugin type: Other at socket ",
		},
		"an invalid answer": {
			climbing, &handler{}, `RegisterPlugin error -- plugin validation failed with err: name is "../a"`,
		},
		"refused by its handler": {
			driver("a"), &handler{invalid: errors.New("too old")},
			"RegisterPlugin error -- plugin validation failed with err: too old",
		},
		"a failed registration": {
			driver("a"), &handler{failing: errors.New("no node\xff")},
			"RegisterPlugin error -- plugin registration failed with err: no node�",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, _ := start(t, c.handler)
			c.plugin.serve(t, filepath.Join(dir, "a.sock"))
			proctest.Await(t, limit, "it gets two results", func() bool { return len(c.plugin.results()) > 1 })
			for _, got := range c.plugin.results() {
				if !strings.HasPrefix(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

func TestOnlyTheSocketThatWasFoundIsCalled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	makeSocket(t, path)
	found, err := folder{dir}.sockets(ignore)
	if err != nil {
		t.Fatal(err)
	}
	d := dialer{folder{dir}, "a.sock", found["a.sock"]}
	makeSocket(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if _, err := d.dial(t.Context(), ""); !errors.Is(err, errReplaced) {
		t.Errorf("the dial gives %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff()
	want := 500 * time.Millisecond
	for range 40 {
		if got := b.Step(); got < want || got > want+want/10 {
			t.Errorf("the delay is %v, want %v and up to a tenth more", got, want)
		}
		want = min(2*want, 2*time.Minute+2*time.Second)
	}
}
