package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/kubeversion"
)

func prober() *Prober { return New(Options{Execs: 2, H2C: true}) }

// get is the target of an HTTP probe of a server's URL.
func get(t *testing.T, address string, headers ...v1.HTTPHeader) Target {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return Target{PodIP: u.Hostname(), Container: &v1.Container{Name: "c"}, Probe: &v1.Probe{
		TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
			Path:        u.RequestURI(),
			Port:        intstr.FromInt(port),
			Scheme:      v1.URIScheme(strings.ToUpper(u.Scheme)),
			HTTPHeaders: headers,
		}},
	}}
}

func TestHTTPResults(t *testing.T) {
	mux := http.NewServeMux()
	for path, code := range map[string]int{
		"/200": 200,
		"/204": 204,
		"/399": 399,
		"/400": 400,
		"/404": 404,
		"/500": 500,
		"/302": 302,
	} {
		mux.HandleFunc(path,
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = io.WriteString(w, "body") })
	}
	mux.HandleFunc("/here",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/200", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/loop",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]Result{
		"/200":   {Success, "body"},
		"/204":   {Success, ""},
		"/400":   {Failure, "HTTP probe failed with statuscode: 400"},
		"/404":   {Failure, "HTTP probe failed with statuscode: 404"},
		"/500":   {Failure, "HTTP probe failed with statuscode: 500"},
		"/here":  {Success, "body"},
		"/399":   {Warning, "Probe terminated redirects, Response body: body"},
		"/away":  {Warning, "Probe terminated redirects, Response body: <a href=\"http://example.invalid/\">Found</a>.\n\n"},
		"/loop":  {Failure, "Get \"/loop\": stopped after 10 redirects"},
		"/200?a": {Success, "body"},
	} {
		if got, err := prober().Probe(t.Context(), get(t, server.URL+path)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", path, got, err, want)
		}
	}
}

func TestHTTPRequest(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	requests := make(chan *http.Request, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r })
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	defer plain.Close()
	secure.EnableHTTP2 = true
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	defer secure.Close()
	h2c := httptest.NewUnstartedServer(handler)
	h2c.Config.Protocols = new(http.Protocols)
	h2c.Config.Protocols.SetUnencryptedHTTP2(true)
	h2c.Start()
	defer h2c.Close()

	ask := func(target Target) *http.Request {
		t.Helper()
		if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Success {
			t.Fatalf("%+v, %v", got, err)
		}
		return <-requests
	}
	r := ask(get(t, plain.URL))
	if r.UserAgent() != "kube-probe/"+kubeversion.MajorMinor || r.Header.Get("Accept") != "*/*" ||
		r.Header.Get("Accept-Encoding") != "" || !r.Close || r.ProtoMajor != 1 {
		t.Errorf("request %v, close %v, %s", r.Header, r.Close, r.Proto)
	}
	r = ask(get(t, plain.URL, v1.HTTPHeader{Name: "Host", Value: "web.example"},
		v1.HTTPHeader{Name: "Accept", Value: ""},
		v1.HTTPHeader{Name: "User-Agent", Value: "me"}, v1.HTTPHeader{Name: "X", Value: "1"},
		v1.HTTPHeader{Name: "X", Value: "2"}))
	if r.Host != "web.example" || r.UserAgent() != "me" || r.Header.Get("Accept") != "" ||
		len(r.Header.Values("X")) != 2 {
		t.Errorf("host %s, headers %v", r.Host, r.Header)
	}
	if r := ask(get(t, secure.URL)); r.ProtoMajor != 2 {
		t.Errorf("HTTPS by %s", r.Proto)
	}
	target := get(t, h2c.URL)
	protocol := v1.HTTPProtocolHTTP2
	target.Probe.HTTPGet.Protocol = &protocol
	if r := ask(target); r.ProtoMajor != 2 {
		t.Errorf("h2c by %s", r.Proto)
	}
}

// serve answers each connection with f.
func serve(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); f(c) }()
		}
	}()
	return "http://" + l.Addr().String()
}

// A target that means harm gets the kubelet's result, in the time that it has, and no memory.
func TestHostileTargets(t *testing.T) {
	var sent atomic.Int64
	request := func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) }
	targets := map[string]struct {
		answer  func(net.Conn)
		outcome Outcome // 0 for an error
		output  string
	}{
		"never answers": {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, Failure,
			"Client.Timeout exceeded while awaiting headers"},
		"a byte a second": {func(c net.Conn) {
			request(c)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
			for range 10 {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, 0, "Client.Timeout"},
		"1 GiB": {func(c net.Conn) {
			request(c)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", 1<<30)
			block := make([]byte, 1<<20)
			for range 1024 {
				n, err := c.Write(block)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}, Success, strings.Repeat("\x00", maxOutput)},
		"headers without end": {func(c net.Conn) {
			request(c)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			lines := strings.Repeat("X: "+strings.Repeat("x", 4000)+"\r\n", 64)
			for {
				if _, err := io.WriteString(c, lines); err != nil {
					return
				}
			}
		}, Failure, "server response headers exceeded 16384 bytes"},
		"resets": {func(c net.Conn) {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}, Failure, ""},
		"no HTTP": {func(c net.Conn) { request(c); fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n") }, Failure, "malformed HTTP"},
	}
	p := prober()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			address := serve(t, target.answer)
			for range 3 {
				began := time.Now()
				asked := get(t, address)
				got, err := p.Probe(t.Context(), asked)
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("took %v", took)
				}
				if target.outcome == 0 {
					if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), target.output) {
						t.Errorf("%+v, %v", got, err)
					}
					continue
				}
				if err != nil || got.Outcome != target.outcome || !strings.Contains(got.Output, target.output) {
					t.Errorf("%v %.200q, %v; want %v %.80q", got.Outcome, got.Output, err, target.outcome,
						target.output)
				}
			}
		})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d MiB were taken of 1 GiB", n>>20)
	}
}

func TestTCP(t *testing.T) {
	target := get(t, serve(t, func(net.Conn) {}))
	port := target.Probe.HTTPGet.Port
	target.Probe.ProbeHandler = v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}
	if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Success {
		t.Errorf("%+v, %v", got, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	target.Probe.TCPSocket.Port = intstr.FromInt(closed)
	if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Failure ||
		!strings.Contains(got.Output, "connection refused") {
		t.Errorf("%+v, %v", got, err)
	}
	target.Probe.TCPSocket.Port = intstr.FromString("web")
	if got, err := prober().Probe(t.Context(), target); err == nil ||
		!strings.Contains(err.Error(), `port "web" not found`) {
		t.Errorf("%+v, %v", got, err)
	}
	target.Container.Ports = []v1.ContainerPort{{Name: "web", ContainerPort: port.IntVal}}
	if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Success {
		t.Errorf("by name: %+v, %v", got, err)
	}
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, states := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, states)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	states.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := grpc.NewServer()
	go func() { _ = other.Serve(bare) }()
	defer other.Stop()

	port := func(l net.Listener) int32 { return int32(l.Addr().(*net.TCPAddr).Port) }
	for _, test := range []struct {
		port    int32
		service *string
		want    Result
	}{
		{port(l), nil, Result{Success, "service healthy"}},
		{port(l), new("ill"), Result{Failure, `service unhealthy (responded with "NOT_SERVING")`}},
		{port(l), new("absent"), Result{Failure,
			"error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"}},
		{port(bare), nil, Result{Failure, "error: this server does not implement the grpc health protocol " +
			"(grpc.health.v1.Health): unknown service grpc.health.v1.Health"}},
		{1, nil, Result{Failure, `timeout: failed to connect service "127.0.0.1:1" within 1s: context deadline exceeded`}},
	} {
		target := Target{
			PodIP: "127.0.0.1",
			Probe: &v1.Probe{
				TimeoutSeconds: 1,
				ProbeHandler:   v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: test.port, Service: test.service}},
			},
		}
		if got, err := prober().Probe(t.Context(), target); err != nil || got != test.want {
			t.Errorf("%+v, %v; want %+v", got, err, test.want)
		}
	}
}

// runtimeOf is a runtime that only executes.
type runtimeOf struct {
	runtimeapi.RuntimeServiceClient
	exec func(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

func (r runtimeOf) ExecSync(ctx context.Context, q *runtimeapi.ExecSyncRequest,
	_ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	return r.exec(ctx, q)
}

func command(words ...string) Target {
	return Target{
		ContainerID: "id", Pod: &v1.Pod{}, Container: &v1.Container{Name: "c", Env: []v1.EnvVar{{Name: "NAME",
			Value: "value"}}},
		Probe: &v1.Probe{TimeoutSeconds: 3, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: words}}},
	}
}

func TestExec(t *testing.T) {
	var answer *runtimeapi.ExecSyncResponse
	var failed error
	var asked *runtimeapi.ExecSyncRequest
	p := New(Options{
		Execs: 1,
		Runtime: runtimeOf{
			exec: func(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				asked = r
				return answer, failed
			},
		},
	})
	for name, test := range map[string]struct {
		answer *runtimeapi.ExecSyncResponse
		err    error
		want   Result
		wrong  error
	}{
		"succeeds": {answer: &runtimeapi.ExecSyncResponse{Stdout: []byte("out"), Stderr: []byte("err")},
			want: Result{Success, "outerr"}},
		"fails": {answer: &runtimeapi.ExecSyncResponse{ExitCode: 1, Stderr: []byte("err")}, want: Result{Failure,
			"err"}},
		"prints much": {answer: &runtimeapi.ExecSyncResponse{Stdout: make([]byte, 1<<20)}, want: Result{Success,
			string(make([]byte, maxOutput))}},
		"times out": {err: status.Error(codes.DeadlineExceeded, "late"), want: Result{Failure,
			`command timed out: "sh value" timed out after 3s`}},
		"gateway": {err: status.Error(codes.Unavailable, "gone"), wrong: ErrUnreachable},
		"no program": {err: status.Error(codes.Unknown, "no such file"), wrong: status.Error(codes.Unknown,
			"no such file")},
	} {
		answer, failed = test.answer, test.err
		got, err := p.Probe(t.Context(), command("sh", "$(NAME)"))
		if got != test.want || !errors.Is(err, test.wrong) {
			t.Errorf("%s: %.80q, %v", name, got.Output, err)
		}
		if asked.GetTimeout() != 3 || asked.GetContainerId() != "id" || asked.GetCmd()[1] != "value" {
			t.Errorf("%s: asked %v", name, asked)
		}
	}
}

// A runtime that hangs gives no result, and commands that hang leave room for others.
func TestExecThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var atOnce, most atomic.Int32
		p := New(Options{
			Execs: 2,
			Runtime: runtimeOf{
				exec: func(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
					if r.GetCmd()[0] == "hang" {
						<-ctx.Done()
						return nil, status.FromContextError(ctx.Err()).Err()
					}
					most.Store(max(most.Load(), atOnce.Add(1)))
					time.Sleep(100 * time.Millisecond)
					atOnce.Add(-1)
					return &runtimeapi.ExecSyncResponse{}, nil
				},
			},
		})
		hung := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := p.Probe(t.Context(), command("hang"))
				hung <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		done := make(chan Result, 20)
		for range 20 {
			go func() {
				v, _ := p.Probe(t.Context(), command("true"))
				done <- v
			}()
		}
		for range 20 {
			if v := <-done; v.Outcome != Success {
				t.Errorf("%+v", v)
			}
		}
		if took := time.Since(began); took > 4*time.Second || most.Load() > 2 {
			t.Errorf("20 commands took %v beside two that hang, %d at once", took, most.Load())
		}
		for range 2 {
			if err := <-hung; !errors.Is(err, ErrUnreachable) {
				t.Errorf("a runtime that does not answer: %v", err)
			}
		}
	})
}

// TestCommandsOfOneNamespaceHoldUpNoOther: commands that hang keep their places for 2 s each.
func TestCommandsOfOneNamespaceHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{
			Execs: 2,
			Runtime: runtimeOf{
				exec: func(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
					if r.GetCmd()[0] == "hang" {
						<-ctx.Done()
					}
					return &runtimeapi.ExecSyncResponse{}, nil
				},
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		for range 500 {
			go func() {
				hanging := command("hang")
				hanging.Pod.Namespace = "many"
				_, _ = p.Probe(ctx, hanging)
			}()
		}
		synctest.Wait()
		began := time.Now()
		for range 3 {
			if result, err := p.Probe(t.Context(), command("true")); err != nil || result.Outcome != Success {
				t.Errorf("%v, %v", result, err)
			}
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("three probes took %v", took)
		}
		cancel()
	})
}
