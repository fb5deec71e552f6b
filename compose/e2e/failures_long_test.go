//go:build long && !bench

package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/compose/rig"
)

var update = flag.Bool("update", false, "write what the real kubelet shows into testdata instead of comparing with it")

// TestFailuresOfTheKubelet holds the recorded texts to a live kubelet.
func TestFailuresOfTheKubelet(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	got := symptoms(t)
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(readGolden(t), got); diff != "" {
		t.Errorf("the kubelet shows other things than were recorded, run with -update (-recorded +kubelet):\n%s", diff)
	}
}
