package resize

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

func TestMain(m *testing.M) { os.Exit(scene.Main(m, scene.Options{})) }
