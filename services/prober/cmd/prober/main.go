// Command prober runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/prober"
)

func main() { service.Main(prober.Command()) }
