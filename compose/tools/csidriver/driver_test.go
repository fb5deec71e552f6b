package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"k8s.io/mount-utils"
)

// start serves a driver below a folder until the test ends, and returns its socket.
func start(t *testing.T, dir string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	endpoint := filepath.Join(dir, "csi.sock")
	go func() {
		done <- run(ctx, options{
			endpoint: endpoint, name: "csidriver.microlet.example", node: "n", dir: dir + "/volumes",
			can: abilities{attach: true},
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return endpoint
}

// TestSanity is csi-test's suite.
func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir, err := os.MkdirTemp("", "csidriver") // the test's own folder may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := mount.New("").List()
		if err != nil {
			t.Error(err)
		}
		for _, m := range left {
			if mount.PathWithinBase(m.Path, dir) {
				t.Errorf("%s is still mounted", m.Path)
				return // a removal would empty the volume
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	config := sanity.NewTestConfig()
	config.Address = start(t, dir)
	config.StagingPath = filepath.Join(dir, "staging")
	config.TargetPath = filepath.Join(dir, "target")
	sanity.Test(t, config)
}
