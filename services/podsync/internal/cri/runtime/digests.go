package runtime

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Digests returns a digest of each pod that the runtime has anything of, from two list
// calls: pod.State.Digest of the same moment would be the same. It is for finding out
// which pods to read.
func (r *Runtime) Digests(ctx context.Context) (map[types.UID]string, error) {
	states, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	digests := make(map[types.UID]string, len(states))
	for uid, st := range states {
		digests[uid] = st.Digest()
	}
	return digests, nil
}
