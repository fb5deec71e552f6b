package server

import (
	"net/http"
	"strings"
	"sync"

	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
)

// places are those of requests of one cost on one port. An owner has at most half of what the others leave, so there is
// always one for the next owner.
type places struct {
	mu           sync.Mutex
	total, taken int
	of           map[string]int
}

func newPlaces(total int) *places { return &places{total: total, of: map[string]int{}} }

// take takes a place for an owner, and returns how to give it back. The owner "" has no share.
func (p *places) take(owner string) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.of[owner]
	left := p.total - (p.taken - own)
	if p.taken >= p.total || owner != "" && own >= (left+1)/2 {
		return nil, false
	}
	p.taken++
	p.of[owner]++
	return func() { p.release(owner) }, true
}

func (p *places) release(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[owner]--; p.of[owner] == 0 {
		delete(p.of, owner)
	}
}

// owner is who has the place of a request: the namespace of the pod, because the API server asks for the users of all
// namespaces, or the address of who asks for a short answer.
func (r route) owner(req *http.Request) string {
	if r.cost == short {
		return httpport.AddressOf(req).String()
	}
	if !strings.Contains(r.pattern, "/{namespace}/") {
		return ""
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	namespace, _, _ := strings.Cut(path, "/")
	return namespace
}
