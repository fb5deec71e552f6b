// Command microlet-local contains the services of the node that need no API server. See package local.
package main

import (
	"os"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/local"
	"github.com/microlet/microlet/services/stats"
)

func main() {
	if !stats.RunChild() {
		service.Main(local.Command(os.Args[1:]))
	}
}
