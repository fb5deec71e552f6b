package csivolume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

// What is mounted in the folder of a volume beside its mount point keeps its files.
func TestARemovalEntersNoMount(t *testing.T) {
	l := layout{t.TempDir()}
	ofPod, ofNode := l.volume("u1", "pv-h"), l.device(device{driverName, "h"})
	published := l.blockTarget("u1", "pv-b")
	for name, c := range map[string]struct {
		dir    string
		remove func() error
	}{
		"that of a pod":  {ofPod, func() error { return remove(t.Context(), ofPod, target) }},
		"that of a node": {ofNode, func() error { return remove(t.Context(), ofNode, staging) }},
		"what is known of a block volume": {l.blockData("pv-b"),
			func() error { return l.removeBlock(t.Context(), "pv-b") }},
		"what a driver has published at": {published, func() error { return removeUnmounted(published) }},
	} {
		t.Run(name, func(t *testing.T) {
			mounted := t.TempDir()
			precious := filepath.Join(mounted, "precious")
			if err := os.WriteFile(precious, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(c.dir, "beside")
			mountAt(t, mounted, at, "", unix.MS_BIND)
			if err := c.remove(); err == nil {
				t.Error("the folder was removed")
			}
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("what was mounted lost its files: %v", err)
			}
			if err := errors.Join(unix.Unmount(at, 0), unix.Rmdir(at), c.remove()); err != nil {
				t.Error(err)
			}
			if exists(c.dir) {
				t.Error("the folder is left when nothing is mounted")
			}
		})
	}
}

// A process that was killed while it wrote vol_data.json has left a part of it.
func TestWhatAKillHasLeftOfAFileIsRemoved(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	vs := newVolumes(t, root, d, unattached())
	for _, v := range []*Volume{claimed(pod("u1"), "h"), block(pod("u1"), "b")} {
		if _, err := vs.Publish(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{
		vs.layout.volume("u1", "pv-h"), vs.layout.device(device{driverName, "h"}), vs.layout.blockData("pv-b"),
	} {
		if err := os.WriteFile(filepath.Join(dir, ".new-1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release(t, vs, "u1")
	if found := left(t, root); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}
