package mounts

import (
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestInside(t *testing.T) {
	for _, tc := range []struct {
		path string
		dirs []string
		want bool
	}{
		{"/var/lib/rig/a", []string{"/var/lib/rig/a"}, true},
		{"/var/lib/rig/a/x", []string{"/run/a", "/var/lib/rig/a/"}, true},
		{"/var/lib/rig/ab", []string{"/var/lib/rig/a"}, false},
		{"/var/lib/rig", []string{"/var/lib/rig/a"}, false},
		{"/etc", []string{""}, false},
		{"/etc", []string{"/"}, false},
	} {
		if got := Inside(tc.path, tc.dirs...); got != tc.want {
			t.Errorf("Inside(%q, %q) = %v, want %v", tc.path, tc.dirs, got, tc.want)
		}
	}
}

func TestShare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as mounts do")
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := RemoveUnder(dir); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := Share(dir); err != nil {
			t.Fatal(err)
		}
	}
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(infos) != 1 || !strings.Contains(infos[0].Optional, "shared:") {
		t.Errorf("the mounts are %+v, want a shared one", infos)
	}
}
