// Command nodeapi runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodeapi"
)

func main() { service.Main(nodeapi.Command()) }
