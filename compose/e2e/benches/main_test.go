//go:build bench

package benches

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// The kubelet is measured first, on a machine that has run nothing else.
func TestMain(m *testing.M) {
	os.Exit(scene.Main(m, scene.Options{Agent: rig.AgentKubelet, With: []string{rig.GroupCSI}}))
}
