// Command rig-node-programs builds the programs of a node, while the rig itself is still being compiled.
package main

import (
	"os"

	"github.com/microlet/microlet/compose/rig/internal/build"
)

func main() {
	os.Exit(build.NodeMain(os.Stdout, os.Stderr))
}
