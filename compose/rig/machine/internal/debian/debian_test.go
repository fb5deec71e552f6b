package debian

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersionOf(t *testing.T) {
	for depends, want := range map[string]string{
		"linux-image-6.1.0-48-cloud-amd64 (= 6.1.172-1)":             "6.1.0-48-cloud-amd64",
		"kmod, linux-image-6.1.0-48-cloud-amd64 (= 6.1), linux-base": "6.1.0-48-cloud-amd64",
		"kmod": "",
		"":     "",
	} {
		got, err := versionOf(depends)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", depends, got, err, want)
		}
	}
}

func TestClosure(t *testing.T) {
	const index = "kernel/a/virtio_ring.ko:\n" +
		"kernel/a/virtio-rng.ko: kernel/a/core.ko kernel/a/virtio_ring.ko\n" +
		"kernel/a/core.ko:\n" +
		"kernel/b/virtio_net.ko.xz: kernel/a/virtio_ring.ko\n" +
		"kernel/b/other.ko: kernel/a/core.ko\n"
	got, err := closure(index, []string{"virtio_rng", "virtio_net"})
	want := []string{"kernel/a/core.ko", "kernel/a/virtio-rng.ko", "kernel/a/virtio_ring.ko",
		"kernel/b/virtio_net.ko.xz"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v; files (-want +got):\n%s", err, diff)
	}
	_, err = closure(index, []string{"virtio_rng", "pvpanic"})
	if err == nil || !strings.Contains(err.Error(), "pvpanic") {
		t.Errorf("%v, want a word about pvpanic", err)
	}
}
