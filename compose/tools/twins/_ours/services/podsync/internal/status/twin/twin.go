// Package twin opens what is inside the room.
package twin

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/status/internal/manager"
)

// Merged opens merged of package manager.
func Merged(p *v1.Pod, want *v1.PodStatus) *v1.PodStatus { return manager.TwinMerged(p, want) }
