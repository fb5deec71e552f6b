package unixgrpc

import (
	"slices"
	"sync"

	"github.com/microlet/microlet/proto/role"
)

// Policy says which roles may call which methods. No role may call a method that it doesn't name. It is safe for
// concurrent use.
type Policy struct {
	mu      sync.RWMutex
	methods map[string][]role.Role
}

// NewPolicy returns a policy with these methods, each by its full name ("/package.Service/Method").
func NewPolicy(methods map[string][]role.Role) *Policy {
	p := &Policy{methods: map[string][]role.Role{}}
	for m, roles := range methods {
		p.Allow(m, roles...)
	}
	return p
}

// Allow gives the method to the roles, beside those that have it.
func (p *Policy) Allow(fullMethod string, roles ...role.Role) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.methods[fullMethod] = append(slices.Clone(p.methods[fullMethod]), roles...)
}

// allows reports whether one of the roles may call the method, and whether the policy knows it at all.
func (p *Policy) allows(fullMethod string, roles []role.Role) (allowed, known bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	may, known := p.methods[fullMethod]
	for _, r := range roles {
		if slices.Contains(may, r) {
			return true, known
		}
	}
	return false, known
}
