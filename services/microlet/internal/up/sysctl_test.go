package up

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestRaiseInotify(t *testing.T) {
	for was, want := range map[string]string{"128\n": "1280", "8192\n": "8192\n", "nonsense\n": "nonsense\n"} {
		path := filepath.Join(t.TempDir(), "max_user_instances")
		if err := os.WriteFile(path, []byte(was), 0o600); err != nil {
			t.Fatal(err)
		}
		raiseInotify(path, slog.New(slog.DiscardHandler))
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%q became %q, want %q: %v", was, got, want, err)
		}
	}
	raiseInotify(filepath.Join(t.TempDir(), "absent"), slog.New(slog.DiscardHandler)) // only warns
}
