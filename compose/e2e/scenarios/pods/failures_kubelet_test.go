//go:build long

package pods

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

var update = flag.Bool("update", false, "write what the real kubelet shows into testdata instead of comparing with it")

// TestFailuresOfTheKubelet holds the recorded texts to a live kubelet.
func TestFailuresOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	compareOrRecord(t, golden, symptoms(t, unlessUpdated[map[string]symptom](t, golden)))
}

// unlessUpdated returns what a file has recorded of the kubelet, or the zero value if it must be recorded again.
func unlessUpdated[T any](t *testing.T, file string) (want T) {
	t.Helper()
	if *update {
		return want
	}
	return readRecorded[T](t, file)
}

// compareOrRecord holds what the kubelet shows to the file in which that was recorded, or records it.
func compareOrRecord[T any](t *testing.T, file string, got T) {
	t.Helper()
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(readRecorded[T](t, file), got); diff != "" {
		t.Errorf("the kubelet shows other things than were recorded, run with -update (-recorded +kubelet):\n%s", diff)
	}
}
