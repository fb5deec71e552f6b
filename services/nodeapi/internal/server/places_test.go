package server

import (
	"net/http/httptest"
	"testing"
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
