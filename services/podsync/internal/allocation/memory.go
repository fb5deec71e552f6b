package allocation

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// memory is a store that a restart empties.
type memory struct {
	mu   sync.Mutex
	pods map[types.UID]pod.Resources
}

func newMemory() *memory { return &memory{pods: map[types.UID]pod.Resources{}} }

func (m *memory) Get(uid types.UID) (pod.Resources, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.pods[uid]
	return r, ok
}

func (m *memory) Set(uid types.UID, r pod.Resources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[uid] = r
	return nil
}

func (m *memory) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

func (m *memory) Flush() error { return nil }

func (m *memory) UIDs() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.pods))
}
