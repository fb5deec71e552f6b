package userns

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestIDsOfPods(t *testing.T) {
	away := errors.New("away")
	for _, test := range []struct {
		name  string
		host  machine
		each  uint32
		pods  int
		want  Range
		wrong string // part of the error
	}{
		{"no user", machine{}, Unit, 110, Range{Unit, 1<<32 - Unit}, ""},
		{"no user, larger pods", machine{}, 4 * Unit, 110, Range{4 * Unit, 1<<32 - 4*Unit}, ""},
		{"no getsubids", machine{users: "no getsubids"}, Unit, 110, Range{Unit, 1<<32 - Unit}, ""},
		{"a range", machine{users: "0: kubelet 65536 7208960\n"}, Unit, 110, Range{Unit, 110 * Unit}, ""},
		{"exactly enough", machine{users: "0: kubelet 131072 131072"}, 2 * Unit, 1, Range{2 * Unit, 2 * Unit}, ""},
		{"too few", machine{users: "0: kubelet 65536 7143424"}, Unit, 110, Range{}, "109 pods of 65536"},
		{"too large pods", machine{}, 1 << 31, 110, Range{}, "enough for 1 pods"},
		{"at a wrong place", machine{users: "0: kubelet 100000 655360"}, Unit, 1, Range{}, "100000, is no multiple of 65536"},
		{"an odd length", machine{users: "0: kubelet 65536 65537"}, Unit, 1, Range{}, "65537, is no multiple of 65536"},
		{"the host's own", machine{users: "0: kubelet 0 655360"}, Unit, 1, Range{}, "less than 65536"},
		{"other groups", machine{users: "0: kubelet 65536 65536", groups: "0: kubelet 131072 65536"}, Unit, 1, Range{},
			"/etc/subgid alike"},
		{"two ranges", machine{users: "0: kubelet 65536 65536\n1: kubelet 131072 65536\n"}, Unit, 1, Range{},
			"more than one range"},
		{"words", machine{users: "kubelet has no IDs here at all"}, Unit, 1, Range{}, "no line of"},
		{"no number", machine{users: "0: kubelet a 65536"}, Unit, 1, Range{}, "no first ID"},
		{"beyond numbers", machine{users: "0: kubelet 65536 4294967296"}, Unit, 1, Range{}, "no count"},
		{"away", machine{err: away}, Unit, 1, Range{}, "look for the user kubelet: away"},
	} {
		got, err := subordinate(t.Context(), &test.host, test.each)
		if err == nil {
			err = checkSettings(got, test.each, test.pods)
		}
		switch {
		case test.wrong == "" && (err != nil || got != test.want):
			t.Errorf("%s: %v, %v, want %v", test.name, got, err, test.want)
		case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
			t.Errorf("%s: %v, want %q", test.name, err, test.wrong)
		case test.wrong != "" && errors.Is(err, errSettings) == (test.host.err != nil):
			t.Errorf("%s: %v is one of the settings, or none", test.name, err)
		}
	}
}

// Settings that give a pod no IDs end the start, as with the kubelet.
func TestSettingsThatCannotBe(t *testing.T) {
	n := newNode(t)
	n.max = places + 1
	if _, err := n.tryStart(); !errors.Is(err, errSettings) {
		t.Errorf("too many pods: %v", err)
	}
}

// The real programs are asked as they are on a machine.
func TestMachine(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ctx, name := context.Background(), "no-such-user-here"
	if there, err := (Machine{}).HasUser(ctx, "root"); err != nil || !there {
		t.Errorf("root: %v, %v", there, err)
	}
	if there, err := (Machine{}).HasUser(ctx, name); err != nil || there {
		t.Errorf("without getent: %v, %v", there, err)
	}
	program("getent", "exit 2")
	if there, err := (Machine{}).HasUser(ctx, name); err != nil || there {
		t.Errorf("unknown: %v, %v", there, err)
	}
	program("getent", `[ "$1 $2" = "passwd `+name+`" ]`)
	if there, err := (Machine{}).HasUser(ctx, name); err != nil || !there {
		t.Errorf("of a directory: %v, %v", there, err)
	}
	program("getent", "echo no server >&2; exit 3")
	if _, err := (Machine{}).HasUser(ctx, name); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Errorf("a directory that fails: %v", err)
	}
	if _, err := (Machine{}).SubIDs(ctx, "kubelet", false); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("without getsubids: %v", err)
	}
	program("getsubids", `echo "0: $*"`)
	for groups, want := range map[bool]string{false: "0: kubelet\n", true: "0: -g kubelet\n"} {
		if got, err := (Machine{}).SubIDs(ctx, "kubelet", groups); err != nil || got != want {
			t.Errorf("groups %v: %q, %v", groups, got, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := (Machine{}).SubIDs(ended, "kubelet", false); err == nil {
		t.Error("no error after the end")
	}
}
