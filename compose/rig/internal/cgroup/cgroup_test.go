package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// v2 makes a folder that looks like a v2 root with these controllers.
func v2(t *testing.T, controllers string, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range append([]string{""}, dirs...) {
		at := filepath.Join(root, dir)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.controllers"), []byte(controllers), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCreateUnified(t *testing.T) {
	root := v2(t, "cpuset cpu io memory pids\n", "rigs", "rigs/a")
	tree := Tree{unified: root}
	if err := tree.Create("/rigs/a", true); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "rigs", "rigs/a"} {
		got, err := os.ReadFile(filepath.Join(root, dir, "cgroup.subtree_control"))
		if err != nil || !strings.HasPrefix(string(got), "+") {
			t.Errorf("%q: no controller enabled for its children: %q, %v", dir, got, err)
		}
	}
}

func TestCreateUnifiedNamesTheMissingController(t *testing.T) {
	tree := Tree{unified: v2(t, "cpu cpuset pids\n")}
	err := tree.Create("/rigs", false)
	if err == nil || !strings.Contains(err.Error(), "memory is not available") {
		t.Errorf("error %v, want one that names memory", err)
	}
}

func TestCreateV1InheritsCPUSet(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cpuset/cpuset.cpus", "0-1\n")
	write("cpuset/cpuset.mems", "0\n")
	write("cpuset/rigs/cpuset.cpus", "\n")
	write("cpuset/rigs/cpuset.mems", "\n")
	write("memory/tasks", "")
	tree := Tree{v1: map[string]string{
		"cpuset": filepath.Join(root, "cpuset"),
		"memory": filepath.Join(root, "memory"),
	}}
	if err := tree.Create("/rigs", true); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "cpuset/rigs/cpuset.cpus"))
	if err != nil || string(got) != "0-1\n" {
		t.Errorf("cpus %q, %v: want the parent's", got, err)
	}
	want := []string{filepath.Join(root, "cpuset/rigs/cgroup.procs"), filepath.Join(root, "memory/rigs/cgroup.procs")}
	if diff := cmp.Diff(want, tree.ProcsFiles("/rigs")); diff != "" {
		t.Errorf("procs files (-want +got):\n%s", diff)
	}
	// The machine's own hybrid hierarchy counts too, and others may be at work in it.
	if got := tree.Children("/"); !slices.Contains(got, "rigs") {
		t.Errorf("children %q lack rigs", got)
	}
}

func TestCreateRefusesTheRoot(t *testing.T) {
	for _, path := range []string{"", "/", "rigs/a"} {
		if err := (Tree{unified: "/nowhere"}).Create(path, false); err == nil {
			t.Errorf("%q was created", path)
		}
	}
}
