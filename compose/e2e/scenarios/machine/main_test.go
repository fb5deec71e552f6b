//go:build machine

package machine

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

func TestMain(m *testing.M) { os.Exit(scene.Main(m, scene.Options{With: []string{rig.GroupDevices}})) }
