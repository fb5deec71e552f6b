// Command rooms shows the rooms of a service and what they import of one another: rooms [DIR [SERVICE]].
//
// DIR is a checkout, and this one without it. SERVICE is podsync if it is not given.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/microlet/microlet/compose/e2e/walls"
)

func main() {
	dir, service := ".", "podsync"
	switch len(os.Args) {
	case 3:
		service = os.Args[2]
		fallthrough
	case 2:
		dir = os.Args[1]
	case 1:
	default:
		fmt.Fprintln(os.Stderr, "usage: rooms [DIR [SERVICE]]")
		os.Exit(2)
	}
	packages, err := walls.List(context.Background(), dir, "./services/"+service+"/...")
	if err != nil {
		fmt.Fprintln(os.Stderr, "rooms:", err)
		os.Exit(1)
	}
	fmt.Print(walls.Picture(walls.Rooms(service, packages)))
}
