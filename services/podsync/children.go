package podsync

import (
	"log/slog"
	"maps"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// program is this binary as a child. The path is for mount(8) and its helpers.
var program = childpool.Program("microlet-mounter", func() childpool.Table {
	t := volumes.Operations()
	maps.Copy(t, runtime.Operations())
	return t
}, "PATH="+os.Getenv("PATH"))

// RunChild is what a program that contains podsync calls first of all. If the process was started to make calls on
// foreign file systems for podsync, it does that, and returns true when the program is to end.
func RunChild() bool { return program.Run() }

// newChildren returns the children of a node agent with this root folder. They are started as they are needed.
func newChildren(rootDir string, metrics prometheus.Registerer, log *slog.Logger) (*childpool.Pool, error) {
	p := childpool.New(childpool.Options{
		Program: program, Own: []string{"/", rootDir}, Earlier: true, Log: log,
	})
	return p, registerChildren(metrics, p)
}

// registerChildren shows the numbers of children.
func registerChildren(metrics prometheus.Registerer, p *childpool.Pool) error {
	for state, number := range map[string]func() int{
		"busy": func() int { busy, _, _ := p.Children(); return busy },
		"idle": func() int { _, idle, _ := p.Children(); return idle },
		"hung": func() int { _, _, hung := p.Children(); return hung },
	} {
		err := metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "microlet_podsync_mounter_children",
			Help:        "Child processes for calls on volumes. One that is hung was killed, and the kernel has not let it end.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(number()) }))
		if err != nil {
			return err
		}
	}
	return nil
}
