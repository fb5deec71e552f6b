package proctest

import (
	"os"
	"testing"
)

// TempDir makes a folder of this mode, which is removed when the test ends. Unlike t.TempDir's, it can be reached by
// processes of other users, and its path is short enough for sockets.
func TempDir(t testing.TB, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "microlet-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the test's folder: %v", err)
		}
	})
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}
