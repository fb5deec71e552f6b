//go:build long

package disks

import (
	"os"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// imageDisk is the size in MiB of containerd's filesystem. It holds manyImages twice: packed and unpacked.
const imageDisk = 1800

func TestMain(m *testing.M) { os.Exit(scene.Main(m, scene.Options{ImageDisk: imageDisk})) }
