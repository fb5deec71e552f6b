// Command bus runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/internal/service"
)

func main() { service.Main(bus.Command()) }
