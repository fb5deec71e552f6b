package podsync

import (
	"k8s.io/apimachinery/pkg/types"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/podsync/internal/assignment"
	"github.com/microlet/microlet/services/podsync/internal/probes"
)

// buildProbes gives pods with probes to the prober's replicas, and brings back what these find.
func (n *node) buildProbes() error {
	b := n.service.Bus
	// What comes from the bus comes after all is built: the client connects when it is run.
	n.assigner = assignment.New(assignment.Options{
		Writer:     b.Own(subject.Assignment),
		Known:      bus.Watch[podsyncv1.Assignment](b, subject.Assignment, ">", nil),
		Heartbeats: bus.Watch[busv1.Heartbeat](b, subject.Heartbeats, subject.HeartbeatKeys(role.Prober), func(string) { n.assigner.Beat() }),
		Changed:    func(uid types.UID) { n.probeResults.Assigned(uid) },
		Log:        n.service.Log, Metrics: n.service.Metrics,
	})
	n.probeResults = probes.New(probes.Options{
		Results:  bus.Watch[proberv1.ProbeResult](b, subject.ProbeResults, ">", func(key string) { n.probeResults.Changed(key) }),
		Assigned: n.assigner.Of,
		Wake:     n.workers.Probed,
		Metrics:  n.service.Metrics,
	})
	b.Subscribe(subject.GoneEvents, func(subj string, _ []byte) {
		if r, replica, ok := subject.GoneEventOf(subj); ok && r == role.Prober {
			n.assigner.Lost(replica)
		}
	})
	n.observers = &podObservers{gateway: &n.containers, bus: n.publisher, assigner: n.assigner, probeResults: n.probeResults}
	return nil
}
