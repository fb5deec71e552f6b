// Package probes is podsync's side of the prober: it assigns pods with probes to replicas, which return results.
//
// A changed result wakes the worker of the pod. A result counts only if it is from the replica that the pod is
// assigned to.
package probes

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/probes/internal/assignment"
	"github.com/microlet/microlet/services/podsync/internal/probes/internal/results"
)

// Workers are woken by results; see pods.Workers.
type Workers interface {
	Probed(uid types.UID)
}

// Probing is the node's.
type Probing struct {
	assigner *assignment.Assigner
	results  *results.Store
}

// New follows the prober on the bus.
//
// A pod's assignment decides which results count, and a new assignment has the results looked at again, so that the
// two know each other. Neither is called before both exist: the bus's client connects once it runs, and pods come
// later still.
func New(b *bus.Client, workers Workers, log *slog.Logger, metrics prometheus.Registerer) *Probing {
	p := &Probing{}
	p.assigner = assignment.New(assignment.Options{
		Writer: b.Own(subject.Assignment),
		Known:  bus.Watch[podsyncv1.Assignment](b, subject.Assignment, ">", nil),
		Heartbeats: bus.Watch[busv1.Heartbeat](b, subject.Heartbeats, subject.HeartbeatKeys(role.Prober),
			func(string) { p.assigner.Beat() }),
		Changed: func(uid types.UID) { p.results.Assigned(uid) },
		Log:     log, Metrics: metrics,
	})
	p.results = results.New(results.Options{
		Results: bus.Watch[proberv1.ProbeResult](b, subject.ProbeResults, ">",
			func(key string) { p.results.Changed(key) }),
		Assigned: p.assigner.Of,
		Wake:     workers.Probed,
		Metrics:  metrics,
	})
	b.Subscribe(subject.DisconnectEvents, func(subj string, _ []byte) {
		if r, replica, ok := subject.DisconnectEventOf(subj); ok && r == role.Prober {
			p.assigner.Lost(replica)
		}
	})
	return p
}

// Set takes the newest version of a pod. Its probes are known before it is assigned, so that no result is missed.
func (p *Probing) Set(api *v1.Pod) {
	p.results.Set(api)
	p.assigner.Set(api)
}

// Forget drops a pod that is gone.
func (p *Probing) Forget(uid types.UID) {
	p.assigner.Forget(uid)
	p.results.Forget(uid)
}

// Complete reports that every pod of the sources was set.
func (p *Probing) Complete() { p.assigner.Complete() }

// Of implements pods.Probes.
func (p *Probing) Of(uid types.UID) decide.Results { return p.results.Of(uid) }

// Run assigns until ctx ends.
func (p *Probing) Run(ctx context.Context) error { return p.assigner.Run(ctx) }
