package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnersShareThePlaces has some owners take as many places as they get, one after the other.
func TestOwnersShareThePlaces(t *testing.T) {
	p := newPlaces(100)
	var releases []func()
	for _, step := range []struct {
		owner string
		want  int
	}{{"a", 50}, {"b", 25}, {"c", 13}, {"d", 6}, {"e", 3}, {"f", 2}, {"g", 1}, {"a", 0}} {
		got := 0
		for release, ok := p.take(step.owner); ok; release, ok = p.take(step.owner) {
			releases = append(releases, release)
			got++
		}
		if got != step.want {
			t.Errorf("%s gets %d places, want %d", step.owner, got, step.want)
		}
	}
	for _, release := range releases {
		release()
	}
	if p.taken != 0 || len(p.of) != 0 {
		t.Errorf("left behind: %d, %v", p.taken, p.of)
	}
	for range 100 {
		if _, ok := p.take(""); !ok {
			t.Fatal("without an owner not all places can be taken")
		}
	}
	if _, ok := p.take(""); ok {
		t.Error("there are more places than may be")
	}
}

func TestOwnerOfARequest(t *testing.T) {
	n := newNode(t, nil)
	of := map[string]route{}
	for _, r := range n.routes() {
		of[r.pattern] = r
	}
	for _, test := range []struct{ pattern, path, want string }{
		{"/exec" + containerUIDPath, "/exec/ns/p/uid/c", "ns"},
		{"/portForward" + podPath, "/portForward/ns/p", "ns"},
		{"/containerLogs" + containerPath, "/containerLogs/ns/p/c", "ns"},
		{"/logs/", "/logs/a/b", ""},
		{"/metrics", "/metrics", "192.0.2.1/32"},
	} {
		if got := of[test.pattern].owner(httptest.NewRequest("GET", test.path, nil)); got != test.want {
			t.Errorf("%s is of %q, want %q", test.path, got, test.want)
		}
	}
}

// TestQueriesAreBounded has a caller ask more of the journal than is asked at one time. The other logs are served.
func TestQueriesAreBounded(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(o *Options) {
		o.MaxLogs = 10 * maxQueries
		o.NodeLogs.Command = filepath.Join(t.TempDir(), "journalctl")
		// It says that it runs, and goes on until it is killed.
		script := "#!/bin/sh\necho >" + fifo + "\nexec sleep 60\n"
		if err := os.WriteFile(o.NodeLogs.Command, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	})
	s := httptest.NewServer(n.Handler(decision{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	get := func(path string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Error(err)
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	var all sync.WaitGroup
	for range maxQueries {
		all.Go(func() { get("/logs/?query=kubelet") })
		if _, err := os.ReadFile(fifo); err != nil { // until it runs
			t.Fatal(err)
		}
	}
	if got := get("/logs/?query=kubelet"); got != http.StatusTooManyRequests {
		t.Errorf("one more query: %d, want 429", got)
	}
	if got := get("/logs/"); got != http.StatusOK {
		t.Errorf("a folder: %d, want 200", got)
	}
	cancel()
	all.Wait()
}
