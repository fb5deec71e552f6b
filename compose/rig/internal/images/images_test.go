package images

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func digests(t *testing.T, applets []string) map[string]string {
	t.Helper()
	made, err := makeImages([]byte("pause"), []byte("busybox"), []byte("agnhost"), applets)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, img := range made {
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		got[name] = d.String()
	}
	return got
}

func TestImagesAreReproducible(t *testing.T) {
	first := digests(t, []string{"ls", "sh"})
	if diff := cmp.Diff(first, digests(t, []string{"ls", "sh"})); diff != "" {
		t.Errorf("the same inputs gave other images (-first +second):\n%s", diff)
	}
	if other := digests(t, []string{"ls", "sh", "wc"}); other["busybox"] == first["busybox"] ||
		other["pause"] != first["pause"] {
		t.Error("an applet more must change busybox and not pause")
	}
}

func TestArchiveRefusesBadPaths(t *testing.T) {
	for _, bad := range [][]entry{{file("/etc/x", 0o644, nil)}, {file("a/../b", 0o644, nil)}, {file("", 0o644, nil)},
		{link("a", "b"), folder("a", 0o755)}} {
		if _, err := archive(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestBuildAndPush(t *testing.T) {
	busybox := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(busybox, []byte("#!/bin/sh\necho sh ls busybox\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	in := Input{Busybox: busybox, Agnhost: busybox}
	dir, err := Build(t.Context(), cache, in)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Build(t.Context(), cache, in)
	if err != nil || again != dir {
		t.Errorf("second Build: %q, %v, want %q from the cache", again, err, dir)
	}

	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	if err := Push(t.Context(), dir, host); err != nil {
		t.Fatal(err)
	}
	for _, image := range Names() {
		ref, err := name.NewTag(mirrored(host, image), name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(ref); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	ref, err := name.NewTag(mirrored(host, Busybox), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Config.Cmd, []string{"sh"}) || config.OS != "linux" || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("config of busybox: %+v", config)
	}
}
