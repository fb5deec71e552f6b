// Command rig runs a real control plane, runtime and registry for one node on this machine; see rig --help.
package main

import (
	"os"

	"github.com/microlet/microlet/compose/rig/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
