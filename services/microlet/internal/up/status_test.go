package up

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPreparedPeers(t *testing.T) {
	dir := t.TempDir()
	if _, err := PreparedPeers(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"# Written by microlet prepare.\nMICROLET_ARGS=\"--node-name=n --peer-cgroups=/a/*,/b.service --v=2\"\n": {
			"/a/*", "/b.service",
		},
		"MICROLET_ARGS=\"--peer-cgroups=/a\"\n": {"/a"},
		"MICROLET_ARGS=\"--node-name=n\"\n":     nil,
		"":                                      nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, "config", "bus.env"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := PreparedPeers(dir); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}
