package podlogs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRemoveTakesOnePodAndItsLinks(t *testing.T) {
	dir := t.TempDir()
	f := Folders{Pods: filepath.Join(dir, "pods"), Links: filepath.Join(dir, "containers")}
	gone := Pod{Namespace: "ns", Name: "a.b", UID: "1"}
	stays := Pod{Namespace: "ns", Name: "a.b", UID: "12"}
	for _, p := range []Pod{gone, stays} {
		log := filepath.Join(f.dir(p), "c", "0.log")
		for _, d := range []string{filepath.Dir(log), f.Links} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(log, filepath.Join(f.Links, "link-"+string(p.UID))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(f.Pods, "not-a-pod"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is gone is removed
		if err := f.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	left, err := f.List()
	if err != nil || !slices.Equal(left, []Pod{stays}) {
		t.Fatalf("left %v, %v", left, err)
	}
	links, err := os.ReadDir(f.Links)
	if err != nil || len(links) != 1 || links[0].Name() != "link-12" {
		t.Fatalf("links left: %v, %v", links, err)
	}
}

func TestListWithoutFolder(t *testing.T) {
	if pods, err := (Folders{Pods: filepath.Join(t.TempDir(), "none")}).List(); err != nil || pods != nil {
		t.Fatalf("%v, %v", pods, err)
	}
}

func TestRemoveContainerTakesOneLog(t *testing.T) {
	dir := t.TempDir()
	f := Folders{Pods: filepath.Join(dir, "pods"), Links: filepath.Join(dir, "containers")}
	logs := filepath.Join(f.Pods, "ns_a_1", "c")
	for _, d := range []string{logs, f.Links} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"0.log", "1.log"} {
		if err := os.WriteFile(filepath.Join(logs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(logs, name), filepath.Join(f.Links, "link-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what is gone is removed
		if err := f.RemoveContainer(filepath.Join(logs, "0.log")); err != nil {
			t.Fatal(err)
		}
	}
	if links, err := os.ReadDir(f.Links); err != nil || len(links) != 1 || links[0].Name() != "link-1.log" {
		t.Fatalf("links left: %v, %v", links, err)
	}
	if left, err := os.ReadDir(logs); err != nil || len(left) != 1 || left[0].Name() != "1.log" {
		t.Fatalf("logs left: %v, %v", left, err)
	}
	for _, foreign := range []string{"/etc/passwd", filepath.Join(dir, "x.log"), f.Pods + "/../x.log"} {
		if err := f.RemoveContainer(foreign); err == nil {
			t.Errorf("%s was taken for a log", foreign)
		}
	}
}
