package clifiles_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/microlet/internal/clifiles"
	"github.com/microlet/microlet/services/microlet/internal/command"
)

func write(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if err := clifiles.Write(command.New(), dir, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

func TestWrite(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	files := write(t)
	for name, want := range map[string]string{
		"man/man1/microlet.1":                     "microlet v1.2.3",
		"man/man1/microlet-up.1":                  `\fB--placement\fP`,
		"man/man1/microlet-debug-bundle.1":        "missing.txt",
		"man/man1/microlet-pleg.1":                "Nov 2023",
		"bash-completion/completions/microlet":    "__start_microlet",
		"zsh/site-functions/_microlet":            "#compdef microlet",
		"fish/vendor_completions.d/microlet.fish": "complete -c microlet",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q:\n%.300s", name, want, files[name])
		}
	}
	if strings.Contains(files["man/man1/microlet-up.1"], "api-credentials") {
		t.Error("a flag that is hidden is in the page of up")
	}
	for name, text := range write(t) {
		if files[name] != text {
			t.Errorf("%s is not the same the second time", name)
		}
	}
}

func TestWriteSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clifiles.Write(command.New(), file, ""); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a folder: %v", err)
	}
}
