package leftovers

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// RemoveDead removes at once what Run would leave for later: every container of a pod that has ended, whatever the
// policy keeps, and of other pods what the policy does not keep. It returns how many containers it removed of the
// former. It is the kubelet's DeleteAllUnusedContainers, for a node with a full disk.
func (c *Cleanup) RemoveDead(ctx context.Context) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, span := c.Tracer.Begin(ctx, spanName)
	defer func() { span.End(err) }()
	states, err := c.Runtime.List(ctx)
	if err != nil {
		return 0, fmt.Errorf("list the runtime's pods: %w", err)
	}
	var errs []error
	rest := map[types.UID]*pod.State{}
	for uid, state := range states {
		if !c.Pods.Ended(uid) {
			rest[uid] = state
			continue
		}
		for i := range state.Containers {
			if mayRun(&state.Containers[i]) {
				continue
			}
			if err := c.removeContainer(ctx, &state.Containers[i]); err != nil {
				errs = append(errs, err)
				continue
			}
			removed++
		}
	}
	return removed, errors.Join(append(errs, c.collect(ctx, rest))...)
}
