package pods

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/internal/basic"
	"github.com/microlet/microlet/compose/e2e/scene"
)

func TestBasic(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	basic.Run(t)
}
