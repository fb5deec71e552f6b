package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFindsWhatTheTreeDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".config")
	if err := os.WriteFile(path, []byte("CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=y\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for want, missing := range map[string]string{
		"# a comment\nCONFIG_A=y\n\n# CONFIG_C is not set\n# CONFIG_E is not set\n": "",
		"CONFIG_A=y\nCONFIG_B=y\n":          "CONFIG_B=y",
		"CONFIG_C=y\nCONFIG_E=y\n":          "CONFIG_C=y, CONFIG_E=y",
		"# CONFIG_D is not set\nCONFIG_A=y": "# CONFIG_D is not set",
	} {
		err := check(path, want)
		if (err == nil) != (missing == "") || err != nil && !strings.HasSuffix(err.Error(), ": "+missing) {
			t.Errorf("%q: %v, want a word about %q", want, err, missing)
		}
	}
}

// What the file config asks for must not contradict itself: of two lines for one option the last would win silently.
func TestOptionsAreThereOnce(t *testing.T) {
	text, err := files.ReadFile("config")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name := strings.TrimPrefix(strings.TrimSpace(line), "# ")
		if !strings.HasPrefix(name, "CONFIG_") {
			continue
		}
		name, _, _ = strings.Cut(strings.TrimSuffix(name, " is not set"), "=")
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
}

func TestPathDependsOnTheOptions(t *testing.T) {
	path, err := Path("/cache")
	if err != nil || !strings.HasPrefix(path, "/cache/machine/kernel-"+series+"-") || filepath.Base(path) != "linux" {
		t.Errorf("path %q, %v", path, err)
	}
}
