// Command rig-node is what the containers of compose.yaml run besides the programs; see package container.
package main

import (
	"os"

	"github.com/microlet/microlet/compose/rig/internal/container"
)

func main() {
	os.Exit(container.Main(os.Args[1:], os.Stdout, os.Stderr))
}
