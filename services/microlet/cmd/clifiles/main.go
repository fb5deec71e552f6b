// Command clifiles writes microlet's manual pages and shell completions below a folder, for packages.
package main

import (
	"fmt"
	"os"

	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/clifiles"
	"github.com/microlet/microlet/services/microlet/internal/command"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "clifiles: name the folder to write to, such as /usr/share of a package")
		os.Exit(2)
	}
	if err := clifiles.Write(command.New(), os.Args[1], telemetry.Version); err != nil {
		fmt.Fprintln(os.Stderr, "clifiles:", err)
		os.Exit(1)
	}
}
