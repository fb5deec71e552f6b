package csivolume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestStagedVolumesAreLookedForAgain: a look that failed is followed by another one, though no pod ends meanwhile.
func TestStagedVolumesAreLookedForAgain(t *testing.T) {
	root := t.TempDir()
	devices := layout{root}.devices()
	folder := filepath.Join(devices, driverName, strings.Repeat("a", 64))
	if err := errors.Join(os.MkdirAll(filepath.Dir(devices), 0o750), os.WriteFile(devices, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		vs := New(Options{RootDir: root, InUse: &inUse{}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- vs.Run(ctx) }()
		time.Sleep(grace + 10*time.Second) // the first looks fail
		if err := errors.Join(os.Remove(devices), os.MkdirAll(folder, 0o750)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a folder that belongs to no volume, 3 min after it could be listed: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAVolumeThatIsUnusedAgain: one that is found unused while its unstaging ends is looked for once more.
func TestAVolumeThatIsUnusedAgain(t *testing.T) {
	t.Parallel()
	var under underway
	looks, end := 0, make(chan struct{})
	again := func() { looks++ }
	under.begin("a", func() { <-end }, again)
	under.begin("a", func() { t.Error("begun twice") }, again)
	close(end)
	under.all.Wait()
	under.begin("a", func() {}, again)
	under.all.Wait()
	if looks != 1 {
		t.Errorf("looked for %d times more, want once", looks)
	}
}
