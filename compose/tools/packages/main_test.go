package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0":                  "0.1.0",
		"v0.1.0-rc.1":             "0.1.0~rc.1",
		"v0.1.0-3-g6c2094a":       "0.1.0+3.g6c2094a",
		"v0.1.0-rc.1-3-g6c2094a":  "0.1.0~rc.1+3.g6c2094a",
		"v0.1.0-3-g6c2094a-dirty": "0.1.0+3.g6c2094a+dirty",
		"6c2094a":                 "0~6c2094a",
		"6c2094a-dirty":           "0~6c2094a.dirty",
		"unknown":                 "0~unknown",
		"v1.2.3 ; rm":             "0~v1.2.3.rm",
	} {
		if got := packageVersion(version); got != want {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
}

// tree makes what scripts/install would, with fewer files.
func tree(t *testing.T) input {
	t.Helper()
	in := input{tree: t.TempDir(), scripts: "../../../deploy/packages", arch: "arm64", version: "v0.1.0",
		date: time.Unix(1790000000, 0).UTC()}
	for name, mode := range map[string]os.FileMode{
		"usr/bin/microlet": 0o755, "usr/share/zsh/site-functions/_microlet": 0o644,
	} {
		path := filepath.Join(in.tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// TestReproducible: the same tree gives the same packages, whenever its files were written.
func TestReproducible(t *testing.T) {
	built := map[string][]byte{}
	for i := range 2 {
		in := tree(t)
		in.out = t.TempDir()
		if i == 1 {
			old := time.Unix(1, 0)
			if err := os.Chtimes(filepath.Join(in.tree, "usr/bin/microlet"), old, old); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(in); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"microlet_0.1.0-1_arm64.deb", "microlet-0.1.0-1.aarch64.rpm"} {
			data, err := os.ReadFile(filepath.Join(in.out, name))
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 && !bytes.Equal(data, built[name]) {
				t.Errorf("%s differs from that of the same files", name)
			}
			built[name] = data
		}
	}
}

func TestListMovesFolders(t *testing.T) {
	for _, f := range formats {
		all, err := list(tree(t), f)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"deb": "/usr/share/zsh/vendor-completions/_microlet", "rpm": "/usr/share/zsh/site-functions/_microlet",
		}[f.name]
		found := false
		for _, c := range all {
			found = found || c.Destination == want
			if c.Destination == "/usr/bin/microlet" && c.FileInfo.Mode != 0o755 {
				t.Errorf("%s: the program has mode %v", f.name, c.FileInfo.Mode)
			}
		}
		if !found {
			t.Errorf("%s has no %s", f.name, want)
		}
	}
}

func TestBadInput(t *testing.T) {
	err := write(input{arch: "sparc"})
	for _, want := range []string{"-tree", "-scripts", "-version", "-out", `-arch is "sparc"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error says nothing of %s: %v", want, err)
		}
	}
	in := tree(t)
	in.tree, in.out = t.TempDir(), t.TempDir()
	if err := write(in); err == nil || !strings.Contains(err.Error(), "no files") {
		t.Errorf("the error of an empty tree is %v", err)
	}
}
