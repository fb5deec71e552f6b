// Command pleg runs the service of that name alone.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/pleg"
)

func main() { service.Main(pleg.Command()) }
