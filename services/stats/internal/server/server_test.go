package server

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/stats/internal/cachedvalue"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// A container that the runtime does not list, such as one that it could not remove, costs one list and not one each
// time.
func TestTheRuntimeIsAskedOnceForAContainerThatItDoesNotList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lists := 0
		listed := cri.Created{"a": time.Now()}
		created := cachedvalue.New(cachedvalue.Options[cri.Created]{
			What: "the runtime's containers", Timeout: time.Second, Patience: time.Second, Stale: time.Minute,
			Log: slog.New(slog.DiscardHandler),
			Read: func(context.Context) (cri.Created, error) {
				lists++
				return listed, nil
			},
		})
		go func() { _ = created.Run(ctx) }()
		s := New(Options{Created: created, Log: slog.New(slog.DiscardHandler)})
		for _, step := range []struct {
			ids  []string
			want int
		}{
			{[]string{"a"}, 1},
			{[]string{"a", "b"}, 2},
			{[]string{"a", "b"}, 2},
			{[]string{"a"}, 2},
			{[]string{"b", "c"}, 3},
			{[]string{"c"}, 3},
		} {
			time.Sleep(10 * time.Second)
			s.created(ctx, step.ids)
			if lists != step.want {
				t.Errorf("after %q the runtime has listed %d times, want %d", step.ids, lists, step.want)
			}
		}
	})
}
