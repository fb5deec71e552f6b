package scene

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// MaxLeaseAge is how old the node's Lease may ever be while the API server is there: its own duration, after which
// others may take the node for lost. It is renewed every 10 s.
const MaxLeaseAge = 40 * time.Second

// LeaseRenewals returns nil when the Lease was renewed so often since the mark.
func (s *Scene) LeaseRenewals(since record.Mark, want int) error {
	seen := 0
	for _, e := range s.Record.Since(since) {
		if _, ok := e.Object.(*coordinationv1.Lease); ok && !e.Deleted {
			seen++
		}
	}
	if seen < want {
		return fmt.Errorf("it was renewed %d times since, want %d", seen, want)
	}
	return nil
}

// LeaseRenewedSince returns nil when the Lease was renewed after a time.
func (s *Scene) LeaseRenewedSince(after time.Time) error {
	if renewed := s.Record.View().Lease().Spec.RenewTime.Time; renewed.Before(after) {
		return fmt.Errorf("it was renewed last %s ago", Milliseconds(time.Since(renewed)))
	}
	return nil
}
