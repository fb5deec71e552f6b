// Command nodestatus runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus"
)

func main() { service.Main(nodestatus.Command()) }
