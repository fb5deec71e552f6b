package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// exampleSite is the site of the example's dashboard, with this Prometheus.
func exampleSite(t *testing.T, url string) *httptest.Server {
	t.Helper()
	b, err := read(exampleBoard(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSite(b, url, 5*time.Minute, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	return server
}

// get asks for a page and returns it with its status.
func get(t *testing.T, url string) (string, int) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), answer.StatusCode
}

func TestSite(t *testing.T) {
	var asked []string
	site := exampleSite(t, answers(t, &asked))
	for path, want := range map[string]struct {
		code int
		text []string
	}{
		"/": {http.StatusOK, []string{
			"<title>node</title>", `<meta http-equiv="refresh" content="10">`, "<svg", ">Curves<", "podsync&lt;1&gt;",
			`<a href="?last=5m" aria-current="page">5m</a>`, `<a href="?last=1h">1h</a>`,
		}},
		"/?last=6h":       {http.StatusOK, []string{`<a href="?last=6h" aria-current="page">6h</a>`}},
		"/?last=forever":  {http.StatusBadRequest, []string{`last="forever": give a duration from 2m to 15d`}},
		"/?last=1s":       {http.StatusBadRequest, []string{`last="1s": give a duration`}},
		"/?last=1y":       {http.StatusBadRequest, []string{`last="1y": give a duration`}},
		"/dashboard.json": {http.StatusNotFound, nil},
		"/healthz":        {http.StatusOK, []string{"ok"}},
	} {
		text, code := get(t, site.URL+path)
		if code != want.code {
			t.Errorf("%s has status %d, want %d", path, code, want.code)
		}
		for _, part := range want.text {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q:\n%.2000s", path, part, text)
			}
		}
	}
	// Points that are three minutes apart have rates over six.
	if want := `rate(x{cluster=~".*", instance=~".*"}[6m])`; !strings.Contains(strings.Join(asked, "\n"), want) {
		t.Errorf("asked %q, not %s", asked, want)
	}
}

// TestSiteWithoutPrometheus has the page say what is wrong, and go on asking.
func TestSiteWithoutPrometheus(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	text, code := get(t, exampleSite(t, gone.URL).URL)
	for _, want := range []string{`http-equiv="refresh"`, `role="alert"`, "does not answer", gone.URL} {
		if code != http.StatusBadGateway || !strings.Contains(text, want) {
			t.Errorf("status %d, lacks %q:\n%s", code, want, text)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	b, err := read(exampleBoard(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSite(b, "http://127.0.0.1:1", 5*time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l, s) }()
	if text, code := get(t, "http://"+l.Addr().String()+"/healthz"); code != http.StatusOK {
		t.Errorf("status %d: %s", code, text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestBadAddress(t *testing.T) {
	err := runSite("nowhere:x", "http://127.0.0.1:1", exampleBoard(t), time.Hour, time.Minute)
	if want := "-listen=nowhere:x: "; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
