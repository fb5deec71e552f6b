package server

import (
	"net/http"
	"strings"
	"sync"

	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
)

// places are those of requests of one cost on one port, or the bytes that these may take. An owner has at most half of
// what the others leave, so there is always something for the next owner.
type places struct {
	mu           sync.Mutex
	total, taken int
	of           map[string]int
}

func newPlaces(total int) *places { return &places{total: total, of: map[string]int{}} }

// take takes a place for an owner, and returns how to give it back. The owner "" has no share.
func (p *places) take(owner string) (release func(), ok bool) { return p.takeSome(owner, 1) }

// takeSome takes n places.
func (p *places) takeSome(owner string, n int) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.of[owner]
	left := p.total - (p.taken - own)
	if p.taken+n > p.total || owner != "" && own+n > (left+1)/2 {
		return nil, false
	}
	p.taken += n
	p.of[owner] += n
	return func() { p.release(owner, n) }, true
}

func (p *places) release(owner string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= n
	if p.of[owner] -= n; p.of[owner] == 0 {
		delete(p.of, owner)
	}
}

// maxHeaders is how many bytes the headers of requests of one cost take on one port. A session keeps its own until it
// ends, with the command of an exec, which is in the URL. One may have 1 MiB.
const maxHeaders = 32 << 20

// room is what requests of one cost may take.
type room struct{ requests, headers *places }

func newRoom(requests int) room { return room{newPlaces(requests), newPlaces(maxHeaders)} }

// take takes what a request needs, and returns how to give it back.
func (m room) take(owner string, r *http.Request) (release func(), ok bool) {
	request, ok := m.requests.take(owner)
	if !ok {
		return nil, false
	}
	headers, ok := m.headers.takeSome(owner, headerBytes(r))
	if !ok {
		request()
		return nil, false
	}
	return func() { headers(); request() }, true
}

// headerBytes are those of a request's line and of its header.
func headerBytes(r *http.Request) int {
	bytes := len(r.RequestURI)
	for name, values := range r.Header {
		bytes += len(name)
		for _, value := range values {
			bytes += len(value)
		}
	}
	return bytes
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
