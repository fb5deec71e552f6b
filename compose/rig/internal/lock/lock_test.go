package lock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestFileIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := File(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	waited := false
	if _, err := File(ctx, path, func() { waited = true }); !errors.Is(err, context.DeadlineExceeded) || !waited {
		t.Errorf("second lock: %v, waited: %v: want a deadline and a word about waiting", err, waited)
	}
	unlock()
	again, err := File(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	again()
}
