package volume

import (
	"context"
	"encoding/json"
	"testing"

	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/mounter"
)

// mounterFunc is a Mounter.
type mounterFunc func(ctx context.Context, c mounter.Call) (json.RawMessage, error)

func (f mounterFunc) Run(ctx context.Context, c mounter.Call) (json.RawMessage, error) {
	return f(ctx, c)
}

// TestTheWaitForARemovalIsNotCounted: a node may remove the folders of many pods with many files, a few at a time.
func TestTheWaitForARemovalIsNotCounted(t *testing.T) {
	removed := false
	m := New(Options{RootDir: t.TempDir(), Tokens: noTokens{}, Mounter: mount.New(""), Foreign: mounterFunc(
		func(ctx context.Context, c mounter.Call) (json.RawMessage, error) {
			removed = true
			if _, ends := ctx.Deadline(); ends || c.Operation != "remove" || !c.Long || c.Deadline != defaultDeadline {
				t.Errorf("%+v, and the wait ends: %t", c, ends)
			}
			return nil, nil
		})})
	if err := m.Unmount(t.Context(), "u1"); err != nil || !removed {
		t.Errorf("removed %t, %v", removed, err)
	}
}
