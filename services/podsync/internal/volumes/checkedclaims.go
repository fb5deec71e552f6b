package volumes

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/cluster"
)

// freshClaim is how old the result of a check may be when the set-up uses it.
const freshClaim = 10 * time.Second

// checkedClaims are the PersistentVolumes that were found when claims of pods were checked. The set-up comes at once
// after the check and need not ask the API again, for which the node has a budget of requests.
type checkedClaims struct {
	claims Claims

	mu    sync.Mutex
	found map[types.UID]map[string]checkedClaim
}

type checkedClaim struct {
	volume *cluster.ClaimedVolume
	at     time.Time
}

// check asks the API, and keeps what it finds.
func (c *checkedClaims) check(ctx context.Context, s *Spec) error {
	found, err := c.claims.Find(ctx, s.Pod, s.Volume)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = map[types.UID]map[string]checkedClaim{}
	}
	if c.found[s.Pod.UID] == nil {
		c.found[s.Pod.UID] = map[string]checkedClaim{}
	}
	c.found[s.Pod.UID][s.Volume.Name] = checkedClaim{found, time.Now()}
	return nil
}

// take returns what the check has found, once, or asks the API if that was too long ago.
func (c *checkedClaims) take(ctx context.Context, s *Spec) (*cluster.ClaimedVolume, error) {
	c.mu.Lock()
	checked, ok := c.found[s.Pod.UID][s.Volume.Name]
	delete(c.found[s.Pod.UID], s.Volume.Name)
	c.mu.Unlock()
	if ok && time.Since(checked.at) < freshClaim {
		return checked.volume, nil
	}
	return c.claims.Find(ctx, s.Pod, s.Volume)
}

// forget drops what was found for a pod.
func (c *checkedClaims) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.found, pod)
}
