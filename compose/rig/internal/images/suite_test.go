package images

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// seen is what matters of an entry of an archive.
type seen struct {
	Kind byte
	Mode int64
	Link string
	Size int64
}

func entries(t *testing.T, r io.Reader) map[string]seen {
	t.Helper()
	all := map[string]seen{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uname != "" {
			t.Errorf("%s depends on the machine: %v %q", h.Name, h.ModTime, h.Uname)
		}
		all[h.Name] = seen{h.Typeflag, h.Mode, h.Linkname, h.Size}
	}
}

// system makes a small base system.
func system(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, step := range []error{
		os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755),
		os.WriteFile(filepath.Join(root, "usr/bin/perl"), []byte("perl"), 0o755),
		os.Link(filepath.Join(root, "usr/bin/perl"), filepath.Join(root, "usr/bin/perl5")),
		os.Chmod(filepath.Join(root, "usr/bin/perl"), 0o755),
		os.WriteFile(filepath.Join(root, "usr/bin/su"), nil, 0o755),
		os.Chmod(filepath.Join(root, "usr/bin/su"), 0o755|os.ModeSetuid),
		os.Symlink("usr/bin", filepath.Join(root, "bin")),
		os.Mkdir(filepath.Join(root, "tmp"), 0o777),
		os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	return root
}

func TestLayerOfABaseSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer.tar.gz")
	if err := writeLayer(path, system(t)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]seen{
		"bin":           {tar.TypeSymlink, 0o777, "usr/bin", 0},
		"tmp/":          {tar.TypeDir, 0o1777, "", 0},
		"usr/":          {tar.TypeDir, 0o755, "", 0},
		"usr/bin/":      {tar.TypeDir, 0o755, "", 0},
		"usr/bin/perl":  {tar.TypeReg, 0o755, "", 4},
		"usr/bin/perl5": {tar.TypeLink, 0o755, "usr/bin/perl", 0},
		"usr/bin/su":    {tar.TypeReg, 0o4755, "", 0},
	}
	if diff := cmp.Diff(want, entries(t, zip)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func suiteImages(t *testing.T) map[string]v1.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer.tar.gz")
	if err := writeLayer(path, system(t)); err != nil {
		t.Fatal(err)
	}
	debian, err := tarball.LayerFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range suiteFiles {
		files[name] = []byte(name)
	}
	made, err := suite{
		base: debianBase{
			bash:   []byte("bash"),
			passwd: []byte("root:x:0:0::/root:/bin/sh\n"),
			group:  []byte("root:x:0:\n"),
		},
		debian:  debian,
		files:   files,
		busybox: []byte("busybox"),
		agnhost: []byte("agnhost"),
		nnp:     []byte("nnp"),
		shell:   []byte("shell"),
		meter:   []byte("meter"),
		applets: []string{"bash", "env", "nmeter", "sh"},
	}.images()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestSuiteImages(t *testing.T) {
	made, again := suiteImages(t), suiteImages(t)
	if len(made) != len(suiteNames) {
		t.Errorf("%d images are made and %d have names", len(made), len(suiteNames))
	}
	contents := map[string]map[string]seen{}
	for name, image := range made {
		if len(suiteNames[name]) == 0 {
			t.Errorf("%s has no name in a registry", name)
		}
		first, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := again[name].Digest(); err != nil || first != second {
			t.Errorf("%s: the same inputs gave %s and %s (%v)", name, first, second, err)
		}
		flat := mutate.Extract(image)
		contents[name] = entries(t, flat)
		if err := flat.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		image, path string
		want        seen
	}{
		{"suite-busybox", "bin/sh", seen{tar.TypeReg, 0o755, "", 5}},
		{"suite-busybox", "bin/bash", seen{tar.TypeReg, 0o755, "", 4}},
		{"suite-busybox", "bin/nmeter", seen{tar.TypeReg, 0o755, "", 5}},
		{"suite-busybox", "bin/env", seen{tar.TypeSymlink, 0o777, "busybox", 0}},
		{"suite-agnhost", "agnhost-2", seen{tar.TypeSymlink, 0o777, "agnhost", 0}},
		{"suite-agnhost", "usr/local/bin/nmeter", seen{tar.TypeReg, 0o755, "", 5}},
		{"suite-agnhost", "usr/bin/perl", seen{tar.TypeReg, 0o755, "", 4}},
		{"suite-kitten", "agnhost", seen{tar.TypeReg, 0o755, "", 7}},
		{"suite-kitten", "data.json", seen{tar.TypeReg, 0o644, "", 21}},
		{"suite-kitten", "etc/os-release", seen{tar.TypeReg, 0o644, "", 30}},
		{"suite-nonewprivs", "usr/local/bin/nnp", seen{tar.TypeReg, 0o6755, "", 3}},
	} {
		if got := contents[tc.image][tc.path]; got != tc.want {
			t.Errorf("%s has as %s %+v, want %+v", tc.image, tc.path, got, tc.want)
		}
	}
	if n := len(contents["suite-many-files"]); n < 30_000 {
		t.Errorf("suite-many-files has %d files", n)
	}
	config, err := made["suite-nonroot"].ConfigFile()
	if err != nil || config.Config.User != "1234" {
		t.Errorf("suite-nonroot runs as %q, %v, want 1234", config.Config.User, err)
	}
}

func TestSuiteReplacesBaseImages(t *testing.T) {
	for _, name := range []string{Busybox, Agnhost} {
		if !slices.Contains(SuiteNames(), name) || !slices.Contains(Names(), name) {
			t.Errorf("%s is not in both sets", name)
		}
	}
}

func TestMeter(t *testing.T) {
	program, err := compile(t.Context(), "nmeter", meterSource)
	if err != nil {
		t.Fatalf("compile: %v; install gcc and the C library's static half (libc6-dev)", err)
	}
	path := filepath.Join(t.TempDir(), "nmeter")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	// As the specs call it: it ends when head has its line.
	out, err := exec.CommandContext(t.Context(), "sh", "-c", path+" -d0 '%3t' | head -n1").Output()
	if err != nil || !regexp.MustCompile(`^[0-2]\d:[0-5]\d:[0-6]\d\.\d{3}\n$`).Match(out) {
		t.Errorf("it prints %q, %v, want the time of day", out, err)
	}
	if err := exec.CommandContext(t.Context(), path, "-d1", "%c").Run(); err == nil {
		t.Error("it accepts what it can't do")
	}
}
