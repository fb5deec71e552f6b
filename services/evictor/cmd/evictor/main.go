// Command evictor runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/evictor"
	"github.com/microlet/microlet/services/internal/service"
)

func main() {
	if !evictor.RunChild() {
		service.Main(evictor.Command())
	}
}
