// Command imagegc runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/imagegc"
	"github.com/microlet/microlet/services/internal/service"
)

func main() { service.Main(imagegc.Command()) }
