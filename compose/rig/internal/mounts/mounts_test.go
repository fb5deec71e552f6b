package mounts

import "testing"

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
