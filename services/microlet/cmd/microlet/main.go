// Command microlet holds every service of the node, and what starts and shows them.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/command"
)

func main() { service.Main(command.New()) }
