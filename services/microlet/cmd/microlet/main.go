// Command microlet contains all services of the node, their supervisor and the tools of the operator.
package main

import (
	"os"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/command"
	"github.com/microlet/microlet/services/podsync"
	"github.com/microlet/microlet/services/stats"
)

func main() {
	if !stats.RunChild() && !podsync.RunChild() {
		args := command.Arguments(os.Args)
		service.Execute(command.Of(args), args)
	}
}
