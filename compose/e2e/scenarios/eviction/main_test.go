//go:build long

package eviction

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// The sizes in MiB of the agent's filesystem and of containerd's.
const nodeDisk, imageDisk = 800, 1200

func TestMain(m *testing.M) {
	os.Exit(scene.Main(m, scene.Options{NodeDisk: nodeDisk, ImageDisk: imageDisk}))
}
