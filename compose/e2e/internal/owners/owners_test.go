package owners

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProblems(t *testing.T) {
	// Each side is a list of owner=device.
	for _, tc := range []struct {
		name, seen, granted, listed string
		want                        string
	}{
		{"agreement", "p=a q=b", "q=b p=a", "p=a q=b", ""},
		{"nothing", "", "", "", ""},
		{"two owners", "p=a q=a", "p=a", "p=a", "two owners: p and q"},
		{"not granted", "p=a", "", "p=a", `granted to ""`},
		{"listed with another", "p=a", "p=a", "q=a", `listed with "q"`},
		{"leaked", "", "", "p=a", `seen by ""`},
		{"unknown", "p=x", "p=x", "p=x", `no device "x"`},
	} {
		w := World{Devices: []string{"a", "b"}}
		add(&w.Seen, tc.seen)
		add(&w.Granted, tc.granted)
		add(&w.Listed, tc.listed)
		got := strings.Join(w.Problems(), "; ")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func add(o *Owners, text string) {
	for _, pair := range strings.Fields(text) {
		owner, id, _ := strings.Cut(pair, "=")
		o.Add(owner, id)
	}
}

func TestGranted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint")
	if _, err := Granted(path, "u", "r"); err == nil {
		t.Error("there is no file, and no error")
	}
	text := `{"Data":{"PodDeviceEntries":[
		{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"-1":["b"],"0":["a"]},"AllocResp":""},
		{"PodUID":"u","ContainerName":"d","ResourceName":"r","DeviceIDs":{"0":["a"]}},
		{"PodUID":"u","ContainerName":"c","ResourceName":"s","DeviceIDs":{"0":["x"]}},
		{"PodUID":"v","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["y"]}}]},"Checksum":1}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Granted(path, "u", "r")
	if err != nil || strings.Join(got, " ") != "a b" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Granted(path, "u", "r"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}
