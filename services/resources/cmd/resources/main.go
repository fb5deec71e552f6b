// Command resources runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/resources"
)

func main() { service.Main(resources.Command()) }
