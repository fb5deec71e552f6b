package podsync

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/podsync/internal/assignment"
	"github.com/microlet/microlet/services/podsync/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/probes"
	"github.com/microlet/microlet/services/podsync/internal/publish"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// probing publishes pods and has those with probes probed: it gives them to the prober's replicas,
// and brings back what these find. What it publishes, the CRI gateway knows before.
type probing struct {
	*publish.Publisher
	containers *containers.Index
	assigner   *assignment.Assigner
	results    *probes.Store
}

var _ worker.Publish = (*probing)(nil)

// Pod implements worker.Publish.
func (p *probing) Pod(api *v1.Pod, from podsyncv1.PodSource, terminating bool) {
	p.containers.SetPod(api)
	p.Publisher.Pod(api, from, terminating)
	p.assigner.Set(api)
}

// Status implements worker.Publish.
func (p *probing) Status(uid types.UID, state *pod.State, status *v1.PodStatus) {
	p.containers.SetState(uid, state)
	p.Publisher.Status(uid, state, status)
}

// Forget implements worker.Publish.
func (p *probing) Forget(uid types.UID) {
	p.containers.Forget(uid)
	p.Publisher.Forget(uid)
	p.assigner.Forget(uid)
	p.results.Forget(uid)
}

func (n *node) buildProbes() error {
	b, p := n.service.Bus, &probing{Publisher: n.publisher, containers: &n.containers}
	// What comes from the bus comes after all is built: the client connects when it is run.
	p.assigner = assignment.New(assignment.Options{
		Writer:     b.Own(subject.Assignment),
		Known:      bus.Watch[podsyncv1.Assignment](b, subject.Assignment, ">", nil),
		Heartbeats: bus.Watch[busv1.Heartbeat](b, subject.Heartbeats, string(role.Prober)+".*", func(string) { p.assigner.Beat() }),
		Changed:    func(uid types.UID) { p.results.Assigned(uid) },
		Log:        n.service.Log, Metrics: n.service.Metrics,
	})
	p.results = probes.New(probes.Options{
		Results:  bus.Watch[proberv1.ProbeResult](b, subject.ProbeResults, ">", func(key string) { p.results.Changed(key) }),
		Assigned: p.assigner.Of,
		Wake:     n.workers.Probed,
		Metrics:  n.service.Metrics,
	})
	b.Subscribe(subject.GoneEvents, func(subj string, _ []byte) {
		if r, replica, ok := subject.GoneEventOf(subj); ok && r == role.Prober {
			p.assigner.Lost(replica)
		}
	})
	n.probing = p
	return nil
}
