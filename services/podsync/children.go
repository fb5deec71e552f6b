package podsync

import (
	"log/slog"
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/mounter"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// program is this binary as a child.
var program = mounter.Program(func() mounter.Table {
	t := volumes.Operations()
	maps.Copy(t, runtime.Operations())
	return t
})

// RunChild is what a program that contains podsync calls first of all. If the process was started to make calls on
// foreign file systems for podsync, it does that, and returns true when the program is to end.
func RunChild() bool { return program.Run() }

// newChildren returns the children of a node agent with this root folder. They are started as they are needed.
func newChildren(rootDir string, metrics prometheus.Registerer, log *slog.Logger) (*mounter.Pool, error) {
	return mounter.NewPool(mounter.Options{Program: program, Own: []string{"/", rootDir}, Metrics: metrics, Log: log})
}
