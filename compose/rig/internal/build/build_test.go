package build

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const tools = "../../../tools"

func TestEveryProgramIsPinned(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Programs() {
		if seen[p.Name] {
			t.Errorf("%s is listed twice", p.Name)
		}
		seen[p.Name] = true
		version, err := p.version(tools)
		if err != nil {
			t.Error(err)
			continue
		}
		if version == "own" {
			continue
		}
		if !strings.HasPrefix(version, "v") {
			t.Errorf("%s has version %q", p.Name, version)
		}
		text, err := os.ReadFile(filepath.Join(tools, p.Module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if p.Test {
			text, err = os.ReadFile(filepath.Join(tools, p.Module, "suite.go"))
			if err != nil || !strings.Contains(string(text), `_ "`+p.Package+`"`) {
				t.Errorf("%s/suite.go does not import %s: go mod tidy would drop what pins it (%v)", p.Module,
					p.Package, err)
			}
			continue
		}
		if !strings.Contains(string(text), "\t"+p.Package+"\n") &&
			!strings.Contains(string(text), "tool "+p.Package+"\n") {
			t.Errorf("%s/go.mod has no tool line for %s: go mod tidy would drop what pins it", p.Module, p.Package)
		}
	}
	for _, name := range CNIPlugins {
		if !seen[name] {
			t.Errorf("CNI plugin %s is used and not built", name)
		}
	}
}

// TestSourcesAreThere: a pattern that names no file leaves a stale program in the cache.
func TestSourcesAreThere(t *testing.T) {
	for _, p := range Programs() {
		for _, pattern := range p.Sources {
			if found, err := filepath.Glob(filepath.Join(tools, p.Module, pattern)); err != nil || len(found) == 0 {
				t.Errorf("%s: no source is %s, %v", p.Name, pattern, err)
			}
		}
	}
}

// TestKubeadmIsOfTheControlPlanesVersion: it has a module of its own, and asks for images of its own version.
func TestKubeadmIsOfTheControlPlanesVersion(t *testing.T) {
	ours, err := Version(tools, Kubeadm)
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := Version(tools, APIServer); err != nil || ours != theirs {
		t.Errorf("kubeadm is %s, the API server %s, %v", ours, theirs, err)
	}
}

func TestGroups(t *testing.T) {
	for _, tc := range []struct {
		groups, with, without []string
	}{
		{nil, []string{Etcd, Agnhost}, []string{Kubelet, Suite, NodeSuite, Ginkgo}},
		{[]string{GroupConformance}, []string{Etcd, Suite, Ginkgo}, []string{NodeSuite, Prometheus}},
		{[]string{GroupKubelet, GroupNodeConformance}, []string{Etcd, Kubelet, NodeSuite, Ginkgo}, []string{Suite}},
	} {
		in := map[string]bool{}
		for _, p := range Programs() {
			in[p.Name] = p.in(tc.groups)
		}
		for _, name := range tc.with {
			if !in[name] {
				t.Errorf("groups %q lack %s", tc.groups, name)
			}
		}
		for _, name := range tc.without {
			if in[name] {
				t.Errorf("groups %q have %s", tc.groups, name)
			}
		}
	}
}

func TestKeyDependsOnWhatIsBuilt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "m"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "m", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n")
	write("go.sum", "a\n")
	b := &Builder{Tools: dir}
	p := Program{Name: "x", Module: "m", Package: "m/x"}
	key := func(p Program, version, goVersion string) string {
		t.Helper()
		k, err := b.key(p, version, goVersion)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	base := key(p, "v1", "go1")
	if again := key(p, "v1", "go1"); again != base {
		t.Errorf("the same build has the keys %s and %s", base, again)
	}
	tagged := p
	tagged.Tags = "seccomp"
	keys := map[string]string{"another Go": key(p, "v1", "go2"), "other tags": key(tagged, "v1", "go1")}
	write("go.sum", "b\n")
	keys["another dependency"] = key(p, "v1", "go1")
	for what, k := range keys {
		if k == base {
			t.Errorf("%s does not change the key", what)
		}
	}
}

func TestBuildIsCachedAndSaysWhatItDoes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.org/m\n\ngo 1.26.0\n",
		"main.go": "package main\n\nfunc main() {}\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "tools/m"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "tools/m", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	b := &Builder{Tools: filepath.Join(dir, "tools"), Cache: dir, Out: &out}
	p := Program{Name: "m", Module: "m", Package: "."}
	path := filepath.Join(dir, "bin/m-v1/m")
	for range 2 {
		if err := b.buildLocked(t.Context(), p, "v1", path, "[1/1] m v1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "done in"); n != 1 || !exists(path) {
		t.Errorf("built %d times, exists: %v, want once; output:\n%s", n, exists(path), out.String())
	}
	broken := p
	broken.Package = "./nowhere"
	err := b.buildLocked(t.Context(), broken, "v1", filepath.Join(dir, "bin/n/m"), "[1/1] n v1")
	if err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("error %v, want one with what go said", err)
	}
}

func TestInstallUpdatesTheListsOnceAndOnlyIfNeeded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as apt-get does")
	}
	for _, tc := range []struct {
		name    string
		present bool
		fails   int // how many calls fail
		want    string
		wantErr bool
	}{
		{name: "nothing missing", present: true, want: ""},
		{name: "lists are good", want: "install"},
		{name: "lists are old", fails: 1, want: "install update install"},
		{name: "no network", fails: 9, want: "install update", wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			have := tc.present
			var calls []string
			apt := func(_ context.Context, args ...string) error {
				calls = append(calls, args[0])
				if len(calls) <= tc.fails {
					return errors.New("no")
				}
				have = true
				return nil
			}
			err := install(t.Context(), &bytes.Buffer{}, []need{{"a thing", "thing", func() bool { return have }}}, apt)
			if (err != nil) != tc.wantErr {
				t.Errorf("error %v, want one: %v", err, tc.wantErr)
			}
			if got := strings.Join(calls, " "); got != tc.want {
				t.Errorf("apt-get was called with %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLocate(t *testing.T) {
	want, err := filepath.Abs(tools)
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Locate(here); err != nil || got != want {
		t.Errorf("Locate = %q, %v, want %q", got, err, want)
	}
}
