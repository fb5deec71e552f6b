// Command rig-agent keeps a node agent running, as systemd would; see package supervise.
package main

import (
	"os"

	"github.com/microlet/microlet/compose/rig/internal/supervise"
)

func main() {
	os.Exit(supervise.Main(os.Args[1:], os.Stderr))
}
