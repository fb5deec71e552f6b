package sources

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func TestURL(t *testing.T) {
	var body atomic.Value
	var code atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer x" || len(r.Header.Values("X-Two")) != 2 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(int(code.Load()))
		fmt.Fprint(w, body.Load())
	}))
	defer server.Close()
	events := record.NewFakeRecorder(10)
	u := NewURL(URLOptions{
		URL: server.URL, Header: map[string][]string{"Authorization": {"Bearer x"}, "X-Two": {"1", "2"}},
		NodeName: "n", Events: events, Log: slog.New(slog.DiscardHandler), Metrics: metrics(t),
	})
	w := newWants()
	u.set = newSet(podsyncv1.PodSource_POD_SOURCE_HTTP, w, u.o.Log)
	list := func(pods ...string) string {
		return `{"apiVersion":"v1","kind":"PodList","items":[` + strings.Join(pods, ",") + `]}`
	}
	one := func(name, image string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":%q}]}}`, name, image)
	}
	for _, step := range []struct {
		what, body string
		code       int32
		fails      string
		wants      string
	}{
		{"away", "", 503, "503", "not synced"},
		{"one pod, in YAML", text("a", "one"), 200, "", "a-n=one"},
		{"a list", list(one("a", "one"), one("b", "one")), 200, "", "a-n=one b-n=one"},
		{"away again", "", 500, "500", "a-n=one b-n=one"},
		{"broken", list(one("a", "one"), one("b", "")), 200, "items[1]", "a-n=one b-n=one"},
		{"twice the same name", list(one("a", "one"), one("a", "two")), 200, "", "a-n=one"},
		{"nothing", list(), 200, "", ""},
		{"back", text("a", "two"), 200, "", "a-n=two"},
		{"empty", "", 200, "empty", ""},
	} {
		body.Store(step.body)
		code.Store(step.code)
		err := u.once(t.Context())
		if (err == nil) != (step.fails == "") || err != nil && !strings.Contains(err.Error(), step.fails) {
			t.Errorf("%s: error is %v", step.what, err)
		}
		if got := w.String(); got != step.wants {
			t.Errorf("%s: wants %q, not %q", step.what, got, step.wants)
		}
	}
	if e := <-events.Events; !strings.Contains(e, "FailedValidation") ||
		!strings.Contains(e, `duplicate pod name "a-n"`) {
		t.Errorf("event is %q", e)
	}
}

func TestURLErrorsHoldNoPassword(t *testing.T) {
	u := NewURL(URLOptions{
		URL:      "http://user:hunter2@127.0.0.1:1/",
		NodeName: "n",
		Metrics:  metrics(t),
		Log:      slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := u.get(ctx); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
}

// TestHeadersOfAURLAreBounded has the server answer with 10 KiB of headers, and with 128 KiB.
func TestHeadersOfAURLAreBounded(t *testing.T) {
	lines := 10
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range lines {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
		}
	}))
	defer server.Close()
	u := NewURL(URLOptions{URL: server.URL, NodeName: "n", Metrics: metrics(t), Log: slog.New(slog.DiscardHandler)})
	if _, err := u.get(t.Context()); err != nil {
		t.Error(err)
	}
	lines = 128
	if _, err := u.get(t.Context()); err == nil || !strings.Contains(err.Error(), "headers exceeded 65536 bytes") {
		t.Errorf("128 KiB: %v", err)
	}
}

// TestARedirectOfAURLStaysWithHTTPS has a server send podsync on to one that says nothing of who it is.
func TestARedirectOfAURLStaysWithHTTPS(t *testing.T) {
	asked := false
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer plain.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer server.Close()
	u := NewURL(URLOptions{URL: server.URL, NodeName: "n", Metrics: metrics(t), Log: slog.New(slog.DiscardHandler)})
	u.client.Transport = server.Client().Transport
	if _, err := u.get(t.Context()); err == nil || asked {
		t.Errorf("the redirect is followed: %v", err)
	}
}
