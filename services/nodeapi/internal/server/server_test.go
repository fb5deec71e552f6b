package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
	"github.com/microlet/microlet/services/nodeapi/internal/containerlogs"
	"github.com/microlet/microlet/services/nodeapi/internal/nodelogs"
	"github.com/microlet/microlet/services/nodeapi/internal/pods"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
	"github.com/microlet/microlet/services/nodeapi/internal/scrape"
	"github.com/microlet/microlet/services/nodeapi/internal/stats"
)

// known are the pods of the bus, by their UID.
type known struct {
	pods map[string]*nodepods.Pod
	away bool
}

func (k *known) All() map[string]*nodepods.Pod { return k.pods }
func (k *known) Synced() bool                  { return !k.away }

// put has the bus say of a pod that it comes from the API server.
func (k *known) put(p *v1.Pod) {
	k.pods[string(p.UID)] = &nodepods.Pod{Pod: p, Desired: p, Reported: true}
}

// node is a server with what it needs, all of it made up.
type node struct {
	*Server
	runtime *fake.Runtime
	known   known
	logs    string
}

func newNode(t testing.TB, change func(*Options)) *node {
	t.Helper()
	n := &node{
		runtime: fake.NewRuntime(nil),
		known:   known{pods: map[string]*nodepods.Pod{}},
		logs:    t.TempDir(),
	}
	sockets := t.TempDir()
	cri := runtime.New(n.runtime.Conn(), crilist.Options{}, time.Second)
	measured, err := unixgrpc.Dial(filepath.Join(sockets, "absent"), unixgrpc.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = measured.Close() })
	o := Options{
		Kubelet: &kubeletv1beta1.KubeletConfiguration{
			EnableSystemLogHandler: new(true), EnableProfilingHandler: new(true), EnableDebugFlagsHandler: new(true),
		},
		Gate:              func(string) bool { return true },
		DebuggingHandlers: true,
		Pods:              pods.New(&n.known),
		Runtime:           cri,
		Logs:              &containerlogs.Reader{Runtime: cri, Folder: n.logs},
		NodeLogs:          nodelogs.Logs{Files: nodelogs.Files{t.TempDir()}, Command: "false"},
		LogQuery:          true,
		Services: scrape.New(func(r role.Role) string { return filepath.Join(sockets, string(r)) }, unixgrpc.Rules{},
			slog.New(slog.DiscardHandler)),
		MaxRequests:        5,
		MaxLogs:            5,
		MaxStreams:         5,
		MaxUnauthenticated: 4,
		LongWrite:          time.Minute,
		Log:                slog.New(slog.DiscardHandler),
		Metrics:            prometheus.NewRegistry(),
		Flags:              map[string]string{"max-pods": "7"},
	}
	o.Stats = stats.New(statsv1.NewStatsServiceClient(measured), o.Log, o.Metrics)
	if change != nil {
		change(&o)
	}
	n.Server = New(o)
	return n
}

// add puts a pod on the node, with a running container of each name in its spec.
func (n *node) add(t testing.TB, p v1.Pod) {
	t.Helper()
	names := make([]string, 0, len(p.Spec.Containers))
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	_, ids, err := n.runtime.StartPod(t.Context(),
		fake.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), LogDirectory: n.logs, Containers: names})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name:        name,
			ContainerID: "fake://" + ids[name],
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		})
	}
	n.known.put(&p)
}

func pod(name string, containers ...string) v1.Pod {
	p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c, Image: "image"})
	}
	return p
}

// decision is a checker that always says the same, and notes what it was asked.
type decision struct {
	refusal *auth.Refusal
	asked   *[]string
}

func (v decision) Check(_ *http.Request, subresources []string) *auth.Refusal {
	if v.asked != nil {
		*v.asked = subresources
	}
	return v.refusal
}

// serve answers one request over a real connection.
func serve(t *testing.T, h http.Handler, method, path string) (int, string, http.Header) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode, readAll(t, answer), answer.Header
}

func TestAnswers(t *testing.T) {
	n := newNode(t, nil)
	n.add(t, pod("p", "c"))
	if err := os.WriteFile(filepath.Join(n.logs, "c.log"), []byte("2026-01-01T00:00:00.000000000Z stdout F "+
		"one\n2026-01-01T00:00:01.000000000Z stderr F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	waiting := pod("w", "c")
	n.add(t, waiting)
	n.known.pods["w-uid"].Status = v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{{
			Name:  "c",
			State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		}},
	}
	h := n.Handler(decision{})
	for _, test := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/containerLogs/ns/p/c", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=1", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?tail=1", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?limitBytes=2", 200, "on"},
		{"GET", "/containerLogs/ns/p/c?timestamps=true&tailLines=1", 200, "2026-01-01T00:00:01.000000000Z two\n"},
		{"GET", "/containerLogs/ns/p/c?sinceTime=2026-01-01T00:00:01Z", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?stream=Stdout", 200, "one\n"},
		{"GET", "/containerLogs/ns/p/c?stream=Stderr", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
		{"GET", "/containerLogs/ns/p/c?tailLines=x", 400, "Unable to decode query"},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1", 422, "Invalid request"},
		{"GET", "/containerLogs/ns/p/other", 404, `container "other" not found in pod "p"`},
		{"GET", "/containerLogs/ns/other/c", 404, `pod "other" does not exist`},
		{"POST", "/containerLogs/ns/p/c", 405, "Method Not Allowed"},
		{"GET", "/containerLogs/ns/w/c", 400, `container "c" in pod "w" is waiting to start: ContainerCreating`},
		{"POST", "/exec/ns/other/c?output=1&command=x", 404, "pod does not exist"},
		{"POST", "/exec/ns/p/uid/c?output=1&command=x", 404, "pod does not exist"},
		{"POST", "/exec/ns/p/other?output=1&command=x", 500, `container not found ("other")`},
		{"POST", "/exec/ns/p/c?command=x", 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"POST", "/attach/ns/p/other?output=1", 404, "container other not found in pod p_ns"},
		{"GET", "/pods", 200, `"kind":"PodList"`},
		{"DELETE", "/pods", 405, "Method Not Allowed"},
		{"GET", "/allocatedPods", 200, `"kind":"PodList"`},
		{"GET", "/allocatedPods/ns/p", 200, `"kind":"Pod"`},
		{"GET", "/allocatedPods/ns/p/other", 404, "pod not found"},
		{"GET", "/allocatedPods/ns/other", 404, "pod not found"},
		{"POST", "/allocatedPods/ns/p", 405, "Method Not Allowed"},
		{"GET", "/runningpods/", 200, `"name":"p"`},
		{"GET", "/configz", 200, `{"kubeletconfig":{`},
		{"GET", "/statusz", 200, "kubelet statusz"},
		{"GET", "/flagz", 200, "max-pods=7"},
		{"GET", "/healthz/ping", 200, "ok"},
		{"GET", "/healthz", 500, "syncloop failed"}, // no podsync here
		{"GET", "/healthz/imagegc", 404, ""},
		{"GET", "/metrics", 200, ""},
		{"GET", "/stats/summary", 503, "stats has no figures"},
		{"POST", "/stats/summary/", 503, "stats has no figures"},
		{"PUT", "/stats/summary", 405, "Method Not Allowed"},
		{"GET", "/stats/", 404, ""},
		{"GET", "/stats/container", 404, ""},
		{"GET", "/metrics/cadvisor", 503, "stats has no figures"},
		{"GET", "/metrics/resource", 503, "stats has no figures"},
		{"GET", "/debug/flags/v", 406, "unrecognized http method"},
		{"PUT", "/debug/flags/v", 400, "give a whole number from 0 to 7"},
		{"GET", "/debug/pprof/?service=nosuch", 400, "nosuch"},
		{"GET", "/debug/pprof/", 502, "ask podsync"},
		{"GET", "/nosuch", 404, ""},
		{"GET", "/logs/nosuch", 404, ""},
	} {
		code, body, _ := serve(t, h, test.method, test.path)
		if code != test.code || !strings.Contains(body, test.body) {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, code, body, test.code, test.body)
		}
	}
}

func TestOtherPorts(t *testing.T) {
	n := newNode(t, nil)
	for path, want := range map[string]int{
		"/pods":                 200,
		"/metrics":              200,
		"/healthz/ping":         200,
		"/stats/summary":        503,
		"/metrics/resource":     503,
		"/stats/":               404,
		"/exec/ns/p/c":          404,
		"/containerLogs/ns/p/c": 404,
		"/configz":              404,
		"/logs/":                404,
		"/debug/pprof/":         404,
		"/run/ns/p/c":           404,
		"/flagz":                404,
		"/allocatedPods":        404,
	} {
		if code, _, _ := serve(t, n.ReadOnly(), "GET", path); code != want {
			t.Errorf("read-only %s: %d, want %d", path, code, want)
		}
	}
	for path, want := range map[string]int{"/healthz/ping": 200, "/pods": 404, "/metrics": 404} {
		if code, _, _ := serve(t, n.Healthz(), "GET", path); code != want {
			t.Errorf("health port %s: %d, want %d", path, code, want)
		}
	}
}

func TestDisabledHandlers(t *testing.T) {
	n := newNode(t, func(o *Options) { o.DebuggingHandlers = false })
	for path, want := range map[string]int{
		"/exec/ns/p/c":          405,
		"/logs/":                405,
		"/debug/pprof/":         405,
		"/containerLogs/ns/p/c": 405,
		"/pods":                 200,
		"/configz":              404,
	} {
		if code, _, _ := serve(t, n.Handler(decision{}), "GET", path); code != want {
			t.Errorf("without debugging handlers %s: %d, want %d", path, code, want)
		}
	}
	n = newNode(t, func(o *Options) {
		o.Kubelet.EnableSystemLogHandler, o.Kubelet.EnableProfilingHandler, o.Kubelet.EnableDebugFlagsHandler = new(false),
			new(false), new(false)
		o.Gate = func(string) bool { return false }
	})
	for path, want := range map[string]string{
		"/logs/":            "logs endpoint is disabled.",
		"/debug/pprof/heap": "profiling endpoint is disabled.",
		"/debug/flags/v":    "flags endpoint is disabled.",
	} {
		if code, body, _ := serve(t, n.Handler(decision{}), "GET", path); code != 405 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want 405 %q", path, code, body, want)
		}
	}
	for _, path := range []string{"/checkpoint/ns/p/c", "/flagz", "/statusz", "/allocatedPods/ns/p"} {
		if code, _, _ := serve(t, n.Handler(decision{}), "POST", path); code != 404 {
			t.Errorf("%s is there without its gate: %d", path, code)
		}
	}
}

func TestPodsThatAreNotKnownYet(t *testing.T) {
	n := newNode(t, nil)
	n.known.away = true
	for _, path := range []string{"/containerLogs/ns/p/c", "/exec/ns/p/c?output=1", "/pods"} {
		code, _, header := serve(t, n.Handler(decision{}), "GET", path)
		if code != 503 || header.Get("Retry-After") == "" {
			t.Errorf("%s: %d, want 503 and when to come again", path, code)
		}
	}
	n.add(t, pod("p", "c")) // heard of before the bus went away
	if code, _, _ := serve(t, n.Handler(decision{}), "GET", "/pods"); code != 200 {
		t.Errorf("while the bus is away what is known is not shown: %d", code)
	}
}

func TestTooManyAreRefused(t *testing.T) {
	n := newNode(t, func(o *Options) { o.MaxLogs = 3 }) // of which one namespace may have 2
	other := pod("q", "c")
	other.Namespace = "other"
	n.add(t, pod("p", "c"))
	n.add(t, other)
	if err := os.WriteFile(filepath.Join(n.logs, "c.log"), []byte("2026-01-01T00:00:00.000000000Z stdout F one\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(n.Handler(decision{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := func(of string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/containerLogs/"+of+"/c?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for range 2 {
		answer := follow("ns/p")
		defer answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Fatalf("a log that may be followed: %d", answer.StatusCode)
		}
	}
	third := follow("ns/p")
	defer third.Body.Close()
	if third.StatusCode != 429 || third.Header.Get("Retry-After") == "" {
		t.Errorf("a third one: %d, want 429", third.StatusCode)
	}
	foreign := follow("other/q")
	defer foreign.Body.Close()
	if foreign.StatusCode != 200 {
		t.Errorf("one of another namespace: %d, want 200", foreign.StatusCode)
	}
	if code, _, _ := serve(t, n.Handler(decision{}), "GET", "/pods"); code != 200 {
		t.Errorf("logs take the place of others: %d", code)
	}
}

// TestHeadersThatTakeMemory has a namespace follow logs with long URLs, each of which stays until its request ends.
func TestHeadersThatTakeMemory(t *testing.T) {
	n := newNode(t, func(o *Options) { o.MaxLogs = 1000 })
	other := pod("q", "c")
	other.Namespace = "other"
	n.add(t, pod("p", "c"))
	n.add(t, other)
	if err := os.WriteFile(filepath.Join(n.logs, "c.log"), []byte("2026-01-01T00:00:00.000000000Z stdout F one\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(n.Handler(decision{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := func(of string, bytes int) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet,
			s.URL+"/containerLogs/"+of+"/c?follow=true&x="+strings.Repeat("x", bytes), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer.StatusCode
	}
	const long, half = 900 << 10, maxHeaders / 2
	served := 0
	for ; served < half/long+2; served++ {
		if code := follow("ns/p", long); code == http.StatusTooManyRequests {
			break
		}
	}
	if served != half/long {
		t.Errorf("%d URLs of %d bytes are held for a namespace, which may have %d bytes", served, long, half)
	}
	if code := follow("ns/p", 100); code != http.StatusOK {
		t.Errorf("a short one of the same namespace: %d", code)
	}
	if code := follow("other/q", long); code != http.StatusOK {
		t.Errorf("one of another namespace: %d", code)
	}
}

func readAll(t *testing.T, answer *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
