package cached

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/lock"
)

// Folder makes dir unless it exists. The function make gets an empty folder beside it, which becomes
// dir when make succeeds. While another process makes dir, say gets a line about it every ten seconds.
func Folder(ctx context.Context, dir string, say func(format string, args ...any), make func(half string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	begin := time.Now()
	unlock, err := lock.File(ctx, dir+".lock", func() {
		say("waiting for another rig that makes it, %s", time.Since(begin).Round(time.Second))
	})
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	half := dir + ".half"
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := os.MkdirAll(half, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	defer func() { _ = os.RemoveAll(half) }()
	begin = time.Now()
	if err := make(half); err != nil {
		return err
	}
	if err := os.Rename(half, dir); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	say("done in %s", time.Since(begin).Round(time.Second))
	return nil
}
