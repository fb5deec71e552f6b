package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
)

// example is a path that a pattern matches.
func example(pattern string) string {
	p := strings.NewReplacer("{$}", "", "{namespace}", "ns", "{pod}", "p", "{uid}", "p-uid", "{container}", "c", "{check}",
		"ping").Replace(pattern)
	return p
}

// TestEveryRouteIsGuarded takes its cases from the table of routes, so that a new route cannot forget it.
func TestEveryRouteIsGuarded(t *testing.T) {
	n := newNode(t, nil)
	n.add(t, pod("p", "c"))
	type want struct {
		path string
		subs []string
	}
	cases := []want{{"/", subProxy}, {"/nosuch", subProxy}, {"/exec/ns/p", subProxy}, {"/podsx", subProxy}}
	for _, r := range n.routes() {
		cases = append(cases, want{example(r.pattern), r.subresources})
	}
	if len(cases) < 30 {
		t.Fatalf("only %d cases: the table of routes is not what it was", len(cases))
	}
	for _, refusal := range []*auth.Refusal{{Code: 401, Text: "Unauthorized"}, {Code: 403, Text: "Forbidden"}} {
		var asked []string
		h := n.Handler(decision{refusal, &asked})
		for _, c := range cases {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
				asked = nil
				code, body, _ := serve(t, h, method, c.path)
				if code != refusal.Code || body != refusal.Text {
					t.Errorf("%s %s: %d %q, want %d", method, c.path, code, body, refusal.Code)
				}
				if strings.Join(asked, " ") != strings.Join(c.subs, " ") {
					t.Errorf("%s %s: asked for %v, want %v", method, c.path, asked, c.subs)
				}
			}
		}
	}
	if calls := n.runtime.Calls("Exec", "Attach", "PortForward", "ExecSync", "CheckpointContainer"); len(calls) != 0 {
		t.Errorf("the runtime was called for who was refused: %v", calls)
	}
	// The positive control: with a checker that lets pass, the same table answers.
	if code, _, _ := serve(t, n.Handler(decision{}), "GET", "/healthz/ping"); code != 200 {
		t.Errorf("who may call gets %d", code)
	}
}

// TestSubresources holds the table to what the kubelet asks for.
func TestSubresources(t *testing.T) {
	var asked []string
	h := newNode(t, nil).Handler(decision{&auth.Refusal{Code: 403}, &asked})
	for path, want := range map[string]string{
		"/pods":                 "pods proxy",
		"/pods/":                "pods proxy",
		"/runningpods/":         "pods proxy",
		"/allocatedPods":        "pods proxy",
		"/allocatedPods/ns/p":   "pods proxy",
		"/allocatedPods/ns/p/u": "pods proxy",
		"/healthz":              "healthz proxy",
		"/healthz/x":            "healthz proxy",
		"/configz":              "configz proxy",
		"/flagz":                "configz",
		"/statusz":              "statusz",
		"/stats/summary":        "stats",
		"/stats/summary/":       "stats",
		"/stats/container":      "stats",
		"/metrics/resource":     "metrics",
		"/metrics":              "metrics",
		"/metrics/cadvisor":     "metrics",
		"/metrics/probes":       "metrics",
		"/metrics/slis":         "metrics",
		"/logs/":                "log",
		"/logs/a/b":             "log",
		"/checkpoint/ns/p/c":    "checkpoint",
		"/exec/ns/p/c":          "proxy",
		"/containerLogs/ns/p/c": "proxy",
		"/debug/pprof/heap":     "proxy",
		"/debug/flags/v":        "proxy",
		"/run/ns/p/c":           "proxy",
	} {
		serve(t, h, "GET", path)
		if got := strings.Join(asked, " "); got != want {
			t.Errorf("%s needs %q, want %q", path, got, want)
		}
	}
}

// rights is an apiserver with tokens that say what their holders may do: "token get proxy,get log".
type rights struct{}

func (rights) ReviewToken(_ context.Context, in *nodestatusv1.ReviewTokenRequest,
	_ ...grpc.CallOption) (*nodestatusv1.ReviewTokenResponse, error) {
	var review authenticationv1.TokenReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	may, ok := strings.CutPrefix(review.Spec.Token, "token")
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: ok,
		User:          authenticationv1.UserInfo{Username: "user" + may},
	}
	data, err := review.Marshal()
	return &nodestatusv1.ReviewTokenResponse{Review: data}, err
}

func (rights) ReviewAccess(_ context.Context, in *nodestatusv1.ReviewAccessRequest,
	_ ...grpc.CallOption) (*nodestatusv1.ReviewAccessResponse, error) {
	var review authorizationv1.SubjectAccessReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	a := review.Spec.ResourceAttributes
	may := strings.Split(strings.TrimPrefix(review.Spec.User, "user"), ",")
	review.Status.Allowed = a.Resource == "nodes" && a.Name == "n" && slices.Contains(may, a.Verb+"_"+a.Subresource)
	data, err := review.Marshal()
	return &nodestatusv1.ReviewAccessResponse{Review: data}, err
}

// token of a user that has a verb on these subresources.
func token(verb string, subresources ...string) string {
	var may []string
	for _, s := range subresources {
		may = append(may, verb+"_"+s)
	}
	return "token" + strings.Join(may, ",")
}

// configurations are all that change the table of routes.
var configurations = map[string]func(*Options){
	"all on":                     nil,
	"without debugging handlers": func(o *Options) { o.DebuggingHandlers = false },
	"without feature gates":      func(o *Options) { o.Gate = func(string) bool { return false } },
	"with single handlers turned off": func(o *Options) {
		o.Kubelet.EnableSystemLogHandler, o.Kubelet.EnableProfilingHandler, o.Kubelet.EnableDebugFlagsHandler = new(false),
			new(false), new(false)
	},
}

// TestEveryRouteNeedsItsRight goes through the table of routes, as each configuration makes it, with the
// authentication and authorization that the service has: without a credential, with a wrong one, with all
// rights but the one that is needed, and with it alone.
func TestEveryRouteNeedsItsRight(t *testing.T) {
	guard, err := auth.New(auth.Options{
		NodeName: "n", Reviews: rights{}, Log: slog.New(slog.DiscardHandler),
		Authentication: kubeletv1beta1.KubeletAuthentication{
			Webhook: kubeletv1beta1.KubeletWebhookAuthentication{
				Enabled:  new(true),
				CacheTTL: metav1.Duration{Duration: time.Minute},
			},
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: new(false)},
		},
		Authorization: kubeletv1beta1.KubeletAuthorization{Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook},
	})
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]string{
		"GET":     "get",
		"POST":    "create",
		"PUT":     "update",
		"PATCH":   "patch",
		"DELETE":  "delete",
		"OPTIONS": "",
		"HEAD":    "",
		"BREW":    "",
	}
	var every []string
	for _, sub := range [][]string{subProxy, subPods, subHealthz, subConfigz, subFlagz, subStatusz, subStats,
		subMetrics, subLog, subCheckpoint} {
		every = append(every, sub...)
	}
	requests := 0
	for name, change := range configurations {
		n := newNode(t, change)
		n.add(t, pod("p", "c"))
		s := httptest.NewServer(n.Handler(guard))
		defer s.Close()
		client := s.Client()
		client.Timeout = 10 * time.Second
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		ask := func(method, path, token string) int {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s, %s %s: %v", name, method, path, err)
			}
			defer answer.Body.Close()
			requests++
			return answer.StatusCode
		}
		table := append(n.routes(), route{pattern: "/", subresources: subProxy},
			route{pattern: "/nosuch", subresources: subProxy}, route{pattern: "//pods", subresources: subPods})
		if len(table) < 15 {
			t.Fatalf("%s: %d routes: the table is not what it was", name, len(table))
		}
		for _, r := range table {
			if len(r.subresources) == 0 {
				t.Errorf("%s: route %s names no subresource: no caller could be allowed", name, r.pattern)
			}
			path := example(r.pattern)
			others := slices.DeleteFunc(slices.Clone(every),
				func(s string) bool { return slices.Contains(r.subresources, s) })
			for method, verb := range verbs {
				for who, want := range map[string]int{
					"":                       401,
					"wrong":                  401,
					"token":                  403,
					token(verb, others...):   403,
					token("watch", every...): 403,
				} {
					if got := ask(method, path, who); got != want {
						t.Errorf("%s, %s %s with the token %q: %d, want %d", name, method, path, who, got, want)
					}
				}
			}
			for _, sub := range r.subresources {
				if got := ask("GET", path, token("get", sub)); got == 401 || got == 403 {
					t.Errorf("%s, GET %s with the right to get %s: %d", name, path, sub, got)
				}
			}
		}
	}
	t.Logf("%d requests", requests)
}

// TestWhatIsPublic names what the unguarded ports answer, so that no new route gets there by mistake.
func TestWhatIsPublic(t *testing.T) {
	var public []string
	for _, r := range newNode(t, nil).routes() {
		if r.public {
			public = append(public, r.pattern)
		}
	}
	slices.Sort(public)
	want := []string{"/healthz", "/healthz/{check}", "/metrics", "/metrics/cadvisor", "/metrics/probes",
		"/metrics/resource", "/metrics/slis", "/pods", "/pods/{$}", "/stats/",
		"/stats/summary", "/stats/summary/{$}"}
	if !slices.Equal(public, want) {
		t.Errorf("public are %v, want %v", public, want)
	}
}

// one is a listener of one connection.
type one struct {
	conn chan net.Conn
}

func (l one) Accept() (net.Conn, error) {
	c, ok := <-l.conn
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l one) Close() error   { return nil }
func (l one) Addr() net.Addr { return &net.TCPAddr{} }

// TestSlowBodies announces a body and sends none, whether the caller may ask or not.
func TestSlowBodies(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		checker Checker
	}{
		"refused":             {"POST /pods", decision{refusal: &auth.Refusal{Code: 401, Text: "Unauthorized"}}},
		"refused, a stream":   {"POST /exec/ns/p/c", decision{refusal: &auth.Refusal{Code: 403}}},
		"a method too many":   {"POST /pods", decision{}},
		"a body that is read": {"PUT /debug/flags/v", decision{}},
		"a body for nothing":  {"GET /pods", decision{}},
		"a log's":             {"GET /containerLogs/ns/p/c?follow=true", decision{}},
		"a stream's":          {"POST /exec/ns/p/c?command=x&output=1", decision{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, nil)
				n.add(t, pod("p", "c"))
				near, far := net.Pipe()
				l := one{make(chan net.Conn, 1)}
				l.conn <- far
				s := &http.Server{Handler: n.Handler(c.checker)}
				go func() { _ = s.Serve(l) }() // until the listener ends
				began := time.Now()
				if _, err := fmt.Fprintf(near, "%s HTTP/1.1\r\nHost: n\r\nContent-Length: 100\r\n\r\nx", c.request); err != nil {
					t.Fatal(err)
				}
				said, err := io.ReadAll(near)
				if err != nil ||
					!strings.HasPrefix(string(said), "HTTP/1.1 4") && !strings.HasPrefix(string(said), "HTTP/1.1 5") {
					t.Errorf("the answer is %q, %v", said, err)
				}
				if took := time.Since(began); took > bodyTimeout+time.Second {
					t.Errorf("the connection was borne for %v", took)
				}
				close(l.conn)
			})
		})
	}
}

// TestPortsDoNotShareTheirPlaces has strangers take all that the read-only port may serve.
func TestPortsDoNotShareTheirPlaces(t *testing.T) {
	n := newNode(t, func(o *Options) { o.MaxRequests = 1 })
	held, release := make(chan struct{}), make(chan struct{})
	slow := n.handler([]route{{pattern: "/slow", bucket: "slow",
		handle: func(http.ResponseWriter, *http.Request) { close(held); <-release }}}, nil, "test")
	s := httptest.NewServer(slow)
	defer s.Close()
	done := make(chan error, 1)
	go func() {
		answer, err := s.Client().Get(s.URL + "/slow")
		if err == nil {
			err = answer.Body.Close()
		}
		done <- err
	}()
	<-held
	if code, _, _ := serve(t, slow, "GET", "/slow"); code != 429 {
		t.Errorf("one more on the port that is full: %d, want 429", code)
	}
	if code, _, _ := serve(t, n.Healthz(), "GET", "/healthz/ping"); code != 200 {
		t.Errorf("another port: %d, want 200", code)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestBodiesKeepNoPlaces of a port without authentication. A caller who announces bodies and sends none would have the
// monitor of the node's health refused.
func TestBodiesKeepNoPlaces(t *testing.T) {
	n := newNode(t, nil)
	s := httptest.NewServer(n.Healthz())
	defer s.Close()
	for range n.options.MaxRequests {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprint(c, "GET /healthz/ping HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n"+
			"Expect: 100-continue\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		// The server goes on when it reads the body.
		if _, err := io.ReadFull(c, make([]byte, len("HTTP/1.1 100 Continue"))); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := s.Client().Get(s.URL + "/healthz/ping")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("another caller: %d, want 200", answer.StatusCode)
	}
}
