// Package children provides the child processes in which podsync makes calls on foreign file systems.
package children

import (
	"log/slog"
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/mounter"
	"github.com/microlet/microlet/services/podsync/internal/volume"
)

// program is this binary as a child.
var program = mounter.Program(func() mounter.Table {
	t := volume.Operations()
	maps.Copy(t, runtime.Operations())
	return t
})

// Run makes calls on foreign file systems if the process was started to be such a child, and returns true when it is to
// end. A program that contains podsync calls it first of all.
func Run() bool { return program.Run() }

// New returns the children of a node agent with this root folder. They are started as they are needed.
func New(rootDir string, metrics prometheus.Registerer, log *slog.Logger) (*mounter.Pool, error) {
	return mounter.NewPool(mounter.Options{Program: program, Own: []string{"/", rootDir}, Metrics: metrics, Log: log})
}
