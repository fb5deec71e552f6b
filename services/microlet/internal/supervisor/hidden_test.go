package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestHiddenFolders: a process that may read every file sees nothing in the folders that are hidden from it, and all
// that is elsewhere.
func TestHiddenFolders(t *testing.T) {
	dir := proctest.TempDir(t, 0o755)
	folder, file, other := filepath.Join(dir, "folder"), filepath.Join(dir, "file"), filepath.Join(dir, "other")
	for _, d := range []string{folder, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(folder, "key"), file, filepath.Join(other, "seen")} {
		if err := os.WriteFile(f, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, _, log := supervise(t, Spec{
		Name: "process", UID: 47109, GID: 47100, Capabilities: []string{"CAP_DAC_OVERRIDE"}, NoNewPrivileges: true,
		Hidden: []string{folder, file, filepath.Join(dir, "absent")},
	}, "good", Options{})
	until(t, "ready", func() bool { return state(s).State == Ready })
	seen := func(path string) string {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(state(s).PID), "root", path))
		if err != nil {
			return "no such file"
		}
		return string(data)
	}
	for path, want := range map[string]string{
		filepath.Join(folder, "key"): "no such file", file: "", filepath.Join(other, "seen"): "secret",
	} {
		if got := seen(path); got != want {
			t.Errorf("in %s the process sees %q, want %q", path, got, want)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "secret" {
		t.Errorf("the supervisor itself sees %q: %v", data, err)
	}
	if strings.Contains(log.String(), "sees") {
		t.Errorf("log:\n%s", log)
	}
}
