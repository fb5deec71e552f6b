// Command microlet contains all services of the node, their supervisor and the tools of the operator.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/command"
)

func main() { service.Main(command.New()) }
