package rig

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// What device plugins leave behind does not stop the next instance, and a kubelet's folder does.
func TestDevicePluginsAreRemoved(t *testing.T) {
	socket := func(t *testing.T, path string) {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		make func(t *testing.T, root string)
		gone bool
	}{
		"sockets": {func(t *testing.T, root string) { socket(t, filepath.Join(root, "device-plugins", "a.sock")) }, true},
		"nothing": {func(*testing.T, string) {}, true},
		"a kubelet's folder": {func(t *testing.T, root string) {
			if err := os.Mkdir(filepath.Join(root, "pods"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, false},
		"a device manager's state": {func(t *testing.T, root string) {
			if err := os.WriteFile(filepath.Join(root, "device-plugins", "kubelet_internal_checkpoint"), nil,
				0o600); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "k")
			if err := os.MkdirAll(filepath.Join(root, "device-plugins"), 0o755); err != nil {
				t.Fatal(err)
			}
			test.make(t, root)
			if err := removeDevicePlugins(root); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(root); os.IsNotExist(err) != test.gone {
				t.Errorf("after it: %v", err)
			}
		})
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := removeDevicePlugins(link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("the link of an instance is gone: %v", err)
	}
}
