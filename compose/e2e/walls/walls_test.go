package walls

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// top is the repository's root.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.work")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// allPackages are the packages of the project, its tools apart.
var allPackages = []string{"./proto/...", "./services/...", "./compose/..."}

func TestWalls(t *testing.T) {
	packages, err := List(t.Context(), top(t), allPackages...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"services/podsync", "services/pleg", "services/nodestatus", "services/nodeapi",
		"services/bus", "services/microlet/cmd/microlet", "proto/role", "compose/rig"} {
		if !slices.ContainsFunc(packages,
			func(p Package) bool { return p.ImportPath == module+name && len(p.Imports) > 0 }) {
			t.Errorf("go list does not show the imports of %s%s", module, name)
		}
	}
	for _, v := range Violations(packages) {
		t.Error(v)
	}
	t.Logf("%d packages within the walls", len(packages))
}

// TestWallsAreFoundBroken is the positive control: files that are not there are shown to go list, one
// for each wall, and each must be found.
func TestWallsAreFoundBroken(t *testing.T) {
	breaks := map[string]string{
		"services/pleg/internal/hint":    "k8s.io/cri-client/pkg",
		"services/bus":                   "k8s.io/cri-client/pkg/logs",
		"services/internal/run":          "k8s.io/client-go/kubernetes/typed/core/v1",
		"services/prober":                "github.com/pkg/errors",
		"services/podsync/cmd/podsync":   "k8s.io/kubernetes/pkg/kubelet",
		"services/microlet/cmd/microlet": "k8s.io/kubernetes/pkg/apis/core",
		"services/pleg":                  module + "services/podsync",
		"proto/subject":                  module + "services/internal/run",
		"compose/rig":                    module + "services/bus",
	}
	var patterns []string
	for dir := range breaks {
		patterns = append(patterns, "./"+dir)
	}
	packages := broken(t, breaks, patterns...)
	found := Violations(packages)
	for dir, imported := range breaks {
		if !slices.ContainsFunc(found,
			func(v string) bool { return strings.HasPrefix(v, module+dir+" imports "+imported+":") }) {
			t.Errorf("%s imports %s, which is not found", dir, imported)
		}
	}
	if len(found) != len(breaks) {
		t.Errorf("found:\n%s", strings.Join(found, "\n"))
	}
}

// broken lists packages as if each of these folders had a file more, with this import.
func broken(t *testing.T, imports map[string]string, patterns ...string) []Package {
	t.Helper()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for dir, imported := range imports {
		file := filepath.Join(t.TempDir(), "control.go")
		text := "package " + packageName(t, filepath.Join(top(t), dir)) + "\n\nimport _ \"" + imported + "\"\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(top(t), dir, "zz_control.go")] = file
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	packages, err := List(t.Context(), top(t), append([]string{"-overlay=" + path}, patterns...)...)
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// packageName is the package clause of a folder's first file.
func packageName(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go file in %s: %v", dir, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "package "); ok {
			return strings.TrimSpace(name)
		}
	}
	t.Fatalf("%s has no package clause", files[0])
	return ""
}
