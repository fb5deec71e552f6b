package scene

import (
	"fmt"
	"slices"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// HasEvent waits for an Event of a pod with this reason.
func (s *Scene) HasEvent(pod, reason string) func(record.View) error {
	return func(v record.View) error {
		var reasons []string
		for _, e := range v.Events(s.Namespace, pod) {
			reasons = append(reasons, e.Reason)
		}
		if !slices.Contains(reasons, reason) {
			return fmt.Errorf("no event %s about pod %s, only %v", reason, pod, reasons)
		}
		return nil
	}
}
