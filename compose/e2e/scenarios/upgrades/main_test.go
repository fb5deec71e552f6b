//go:build upgrade

package upgrades

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

func TestMain(m *testing.M) {
	os.Exit(scene.Main(m, scene.Options{Agent: rig.AgentMicrolet, With: []string{rig.GroupCSI}}))
}
