package mounts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Loop mounts on a folder an empty ext4 filesystem of its own, which a sparse file holds. All of its blocks are free
// for every user. The loop device goes with the mount.
func Loop(ctx context.Context, file, dir string, bytes int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("mount filesystem: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mount filesystem: %w", err)
	}
	err = f.Truncate(bytes)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("mount filesystem: %w", err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-m0", "-O", "^has_journal", "-E", "lazy_itable_init=0", file},
		{"mount", "-o", "loop", file, dir},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
