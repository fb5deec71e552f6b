package diskusage

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func newWalker(t *testing.T, hung time.Duration) *Walker {
	t.Helper()
	w := NewWalker(slog.New(slog.NewTextHandler(t.Output(), nil)))
	w.hung = hung
	return w
}

func children(w *Walker) int {
	busy, idle, hung := w.pool.Children()
	return busy + idle + hung
}

func TestAWalker(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "volume", "file"), 5000)
	write(t, filepath.Join(top, "log"), 1)
	volume, log := Dir{Path: filepath.Join(top, "volume")}, Dir{Path: filepath.Join(top, "log")}
	gone := Dir{Path: filepath.Join(top, "gone"), Mode: Files}
	w := newWalker(t, hungAfter)
	got, err := w.Walk(t.Context(), []Dir{volume, gone, log})
	if err != nil || len(got) != 3 || got[volume].UsedBytes != 8192 || got[log].UsedBytes != 4096 ||
		got[gone] != (Usage{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := w.Walk(t.Context(), []Dir{{Path: "relative"}}); err == nil {
		t.Error("a path that is none is measured")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Walk(ctx, []Dir{volume}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	proctest.Await(t, patience, "the end of all children", func() bool { return children(w) == 0 })
}

// TestAWalkerThatIsInterrupted says what it has seen until then.
func TestAWalkerThatIsInterrupted(t *testing.T) {
	hangs, end := fuse(t)
	defer end()
	seen := Dir{Path: tree(t)}
	write(t, filepath.Join(seen.Path, "file"), 5000)
	w := newWalker(t, 5*time.Second)
	got, err := w.Walk(t.Context(), []Dir{seen, {Path: hangs}})
	if !errors.Is(err, childpool.ErrHangs) || got[seen].UsedBytes < 8192 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAWalkerLeavesAChildThatHangsBehind, and no more than a few of them.
func TestAWalkerLeavesAChildThatHangsBehind(t *testing.T) {
	hangs, end := fuse(t)
	w := newWalker(t, 200*time.Millisecond)
	// A child that has not reached the file system by then, on a slow machine, can be killed and does not stay.
	proctest.Await(t, patience, "children that hang, as many as there may be", func() bool {
		_, err := w.Walk(t.Context(), []Dir{{Path: hangs}})
		if !errors.Is(err, childpool.ErrHangs) && !errors.Is(err, childpool.ErrFull) {
			t.Fatal(err)
		}
		_, _, hung := w.pool.Children()
		return hung == maxWalkers
	})
	if _, err := w.Walk(t.Context(), []Dir{{Path: tree(t)}}); !errors.Is(err, childpool.ErrFull) {
		t.Errorf("with %d children that hang: %v", maxWalkers, err)
	}
	end()
	proctest.Await(t, patience, "the end of the children after that of the file system", func() bool {
		return children(w) == 0
	})
	w.hung = hungAfter
	if _, err := w.Walk(t.Context(), []Dir{{Path: tree(t)}}); err != nil {
		t.Error(err)
	}
}
