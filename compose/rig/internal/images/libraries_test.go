package images

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseLdd(t *testing.T) {
	got := parseLdd([]byte("\tlinux-vdso.so.1 (0x00007f8919adc000)\n" +
		"\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f89197f9000)\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f8919ade000)\n"))
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("libraries (-want +got):\n%s", diff)
	}
	if got := parseLdd([]byte("\tstatically linked\n")); len(got) > 0 {
		t.Errorf("a static program has libraries %q", got)
	}
}

// A program of the machine comes with its loader, without which no container starts it.
func TestLinkedBringsTheLoader(t *testing.T) {
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := linked(t.Context(), cat, "usr/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	has := func(part string) bool {
		return slices.ContainsFunc(entries, func(e entry) bool { return strings.Contains(e.path, part) })
	}
	if !has("usr/bin/cat") || !has("ld-") || !has("libc.so") {
		t.Errorf("the image has %d files, but not the program, its loader and the C library", len(entries))
	}
}

func TestTreeKeepsFolders(t *testing.T) {
	from := t.TempDir()
	if err := os.Mkdir(from+"/blobs", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/index.json", "/blobs/a"} {
		if err := os.WriteFile(from+name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := tree(from, LayoutPath)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.path+"="+string(e.content))
	}
	slices.Sort(paths)
	if diff := cmp.Diff([]string{"images/blobs/a=/blobs/a", "images/index.json=/index.json"}, paths); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
