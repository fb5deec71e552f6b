// Command podsync runs the podsync service alone; see package podsync.
package main

import (
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync"
)

func main() {
	if !podsync.RunChild() {
		service.Main(podsync.Command())
	}
}
