package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUsed(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`:                      false,
		`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/a":["1"]}},"Checksum":1}`: true,
		`{"Data":{"PodDeviceEntries":[{"PodUID":"u"}],"RegisteredDevices":{}},"Checksum":1}`:          true,
		`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Other":{"a":"b"},"Checksum":1}`:    false,
		`{"Data":`: true, // Open sets it aside
	} {
		dir := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := Used(dir); got != want {
			t.Errorf("with %q it is %t", text, got)
		}
	}
}
