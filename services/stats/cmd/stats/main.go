// Command stats runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/stats"
)

func main() {
	if !stats.RunChild() {
		service.Main(stats.Command())
	}
}
