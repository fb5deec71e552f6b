package telemetry

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/testing/sockethttp"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		ask(os.Args[1])
	})
	os.Exit(m.Run())
}

// requests are all that the socket of metrics answers.
var requests = []struct{ method, path string }{
	{http.MethodGet, "/metrics"}, {http.MethodGet, "/healthz"}, {http.MethodGet, "/debug/pprof/cmdline"},
	{http.MethodPut, "/debug/flags/v"},
}

// ask makes the requests and prints the answers' codes.
func ask(path string) {
	var codes []string
	for _, r := range requests {
		req, err := http.NewRequest(r.method, "http://service"+r.path, strings.NewReader("0"))
		if err == nil {
			var resp *http.Response
			if resp, err = sockethttp.Client(path).Do(req); err == nil {
				codes = append(codes, strconv.Itoa(resp.StatusCode))
				err = resp.Body.Close()
			}
		}
		if err != nil {
			codes = append(codes, err.Error())
		}
	}
	fmt.Println(strings.Join(codes, " "))
}

// Only root and nodeapi may read and change what is on the socket of metrics: no other service, and no container that
// has their users.
func TestServeChecksItsPeers(t *testing.T) {
	dir := proctest.TempDir(t, 0o750)
	path := filepath.Join(dir, "m.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(dir, 0, role.GroupNode), os.Chown(path, 0, role.GroupNode),
		os.Chmod(path, 0o660)); err != nil {
		t.Fatalf("run the tests as root: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, unixgrpc.Rules{}, NewRegistry("pleg"), func() error { return nil }) }()
	uid := func(r role.Role) int {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		return id.UID
	}
	pod := peertest.Cgroup(t, "kubepods/pod0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10/c")
	for _, c := range []struct {
		name    string
		options peertest.Options
		want    string
	}{
		{"root", peertest.Options{}, "200 200 200 200"},
		{"nodeapi", peertest.Options{UID: uid(role.NodeAPI)}, "200 200 200 200"},
		{"prober", peertest.Options{UID: uid(role.Prober)}, "403 403 403 403"},
		{"a stranger", peertest.Options{UID: 65534}, "403 403 403 403"},
		{"nodeapi's user in a pod", peertest.Options{UID: uid(role.NodeAPI), Cgroups: pod}, "403 403 403 403"},
		{"root in a pod", peertest.Options{Cgroups: pod}, "403 403 403 403"},
	} {
		if got := peertest.Start(t, c.options, path).Line(t); got != c.want {
			t.Errorf("%s gets %s for %v, want %s", c.name, got, requests, c.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve is %v", err)
	}
}

// client-go logs bodies, which contain Secrets and tokens, from a level on that cannot be set.
func TestVerbosityStaysBelowBodies(t *testing.T) {
	defer func() {
		if err := SetVerbosity(0); err != nil {
			t.Error(err)
		}
	}()
	for body, want := range map[string]int{"7": 200, "8": 400, "10": 400, "-1": 400, "x": 400} {
		w := httptest.NewRecorder()
		setVerbosity(w, httptest.NewRequest(http.MethodPut, "/debug/flags/v", strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("verbosity %s: %d %s, want %d", body, w.Code, w.Body, want)
		}
		if klog.V(8).Enabled() {
			t.Errorf("verbosity %s: bodies are logged", body)
		}
	}
	w := httptest.NewRecorder()
	setVerbosity(w, httptest.NewRequest(http.MethodPut, "/debug/flags/v", strings.NewReader("9")))
	if !strings.Contains(w.Body.String(), "use 0 to 7") {
		t.Errorf("the error names no remedy: %s", w.Body)
	}
}

// stuck is a reader of the log that has stopped until it is released.
type stuck struct {
	release chan struct{}
	got     bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.release
	return s.got.Write(p)
}

// The drain goroutine of a Writer lives as long as its process, so these tests cannot be bubbles.
func TestWriterNeverWaits(t *testing.T) {
	out := &stuck{release: make(chan struct{})}
	w := NewWriter(out)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	const lines = 3 * writerLimit / 1024
	for range lines {
		if n, err := w.Write(line); n != len(line) || err != nil {
			t.Fatalf("Write is %d, %v", n, err)
		}
	}
	dropped := w.Dropped()
	if dropped == 0 || dropped == lines {
		t.Fatalf("%d of %d lines were dropped, want what is above 1 MiB", dropped, lines)
	}
	close(out.release)
	w.Flush(time.Minute)
	if got := uint64(out.got.Len() / len(line)); got != lines-dropped {
		t.Errorf("%d lines arrived, want %d", got, lines-dropped)
	}
}

func TestTeeGetsAllThatIsWritten(t *testing.T) {
	out := &stuck{release: make(chan struct{})}
	defer close(out.release)
	w, tee := NewWriter(out), &bytes.Buffer{}
	line := []byte(strings.Repeat("x", 1023) + "\n")
	if _, err := w.Write(line); err != nil {
		t.Fatal(err)
	}
	w.Tee(tee)
	const lines = 2 * writerLimit / 1024
	for range lines {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if tee.Len() != lines*len(line) || w.Dropped() == 0 {
		t.Errorf("the tee got %d bytes, want %d; %d writes were dropped", tee.Len(), lines*len(line), w.Dropped())
	}
}

func TestFlushIsBounded(t *testing.T) {
	out := &stuck{release: make(chan struct{})}
	defer close(out.release)
	w := NewWriter(out)
	if _, err := w.Write([]byte("line\n")); err != nil {
		t.Fatal(err)
	}
	w.Flush(time.Millisecond) // returns, or the test hangs
}

func TestFormats(t *testing.T) {
	var text, js bytes.Buffer
	o := LogOptions{Format: FormatText, Output: &text}
	slog.New(o.Handler()).With("service", "pleg").Info("hello", "n", 1)
	if !strings.Contains(text.String(), `level=INFO msg=hello service=pleg n=1`) {
		t.Errorf("text is %q", &text)
	}
	o = LogOptions{Format: FormatJSON, Output: &js, Verbosity: 5}
	log := slog.New(o.Handler())
	log.Log(t.Context(), slog.Level(-2), "two")
	log.Log(t.Context(), slog.Level(-5), "five")
	log.Log(t.Context(), slog.Level(-6), "six")
	var levels []string
	for _, line := range strings.Split(strings.TrimSpace(js.String()), "\n") {
		var l struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		levels = append(levels, l.Msg+" "+l.Level)
	}
	if got := strings.Join(levels, ", "); got != "two INFO, five DEBUG" {
		t.Errorf("logged %s", got)
	}
}

func TestLogOptionsValidate(t *testing.T) {
	for _, c := range []struct {
		o    LogOptions
		says string
	}{
		{LogOptions{Format: "xml"}, `logging-format is "xml"`},
		{LogOptions{Verbosity: -1}, "v is -1"},
		{LogOptions{Format: FormatJSON, VModule: vmodule(t, "a=1")}, `vmodule is "a=1": it works in the format "text" alone`},
		{LogOptions{InfoBufferSize: -1}, "log-info-buffer-size is -1"},
		{LogOptions{InfoBufferSize: 1}, "log-flush-frequency is 0s"},
	} {
		if err := c.o.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.says)
		}
	}
}

func TestServe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var sick error
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, unixgrpc.Rules{}, NewRegistry("pleg"), func() error { return sick }) }()
	get := func(at string) (int, string) { return sockethttp.Get(t, path, at) }
	code, body := get("/metrics")
	for _, want := range []string{`microlet_build_info{`, `service="pleg"`, "go_goroutines",
		"process_resident_memory_bytes", "microlet_log_writes_dropped_total"} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("/metrics is %d and lacks %s", code, want)
		}
	}
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz is %d %q", code, body)
	}
	for seconds, want := range map[string]int{"0.1": 200, "61": 400, "1e9": 400, "NaN": 400, "+Inf": 400} {
		if code, body := get("/debug/pprof/trace?seconds=" + url.QueryEscape(seconds)); code != want {
			t.Errorf("a trace of %s s is %d %.100q, want %d", seconds, code, body, want)
		}
	}
	sick = errors.New("main loop has stood still")
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || body != "main loop has stood still\n" {
		t.Errorf("/healthz of a sick service is %d %q", code, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve is %v", err)
	}
}

// TestHeadersAreBounded: a service could have another one take hundreds of MiB by headers without an end, which has the
// kernel kill the other one.
func TestHeadersAreBounded(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "m.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, unixgrpc.Rules{}, NewRegistry("pleg"), func() error { return nil }) }()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	headers := "GET /metrics HTTP/1.1\r\n" + strings.Repeat("aaaa:\r\n", 3*maxHeaders/len("aaaa:\r\n"))
	if _, err := conn.Write([]byte(headers)); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(httpTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(answer, " 431 ") {
		t.Errorf("%d bytes of headers without an end: %q, %v", len(headers), answer, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve is %v", err)
	}
}

func TestServeEndsWithItsListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &brokenListener{}
		if err := Serve(t.Context(), l, unixgrpc.Rules{}, NewRegistry("pleg"), func() error { return nil }); err == nil {
			t.Error("a listener that broke is no error")
		}
	})
}

type brokenListener struct{}

func (*brokenListener) Accept() (net.Conn, error) { return nil, errors.New("broken") }
func (*brokenListener) Close() error              { return nil }
func (*brokenListener) Addr() net.Addr            { return &net.UnixAddr{Name: "broken", Net: "unix"} }
