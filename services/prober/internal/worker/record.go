package worker

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"google.golang.org/protobuf/types/known/timestamppb"

	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/subject"
)

// Kind is what a probe is for. Its value is the probe's name in keys.
type Kind string

// The kinds.
const (
	Readiness Kind = subject.ProbeReadiness
	Liveness  Kind = subject.ProbeLiveness
	Startup   Kind = subject.ProbeStartup
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Readiness, Liveness, Startup} }

// Title is the kind's name in metrics and events, the kubelet's.
func (k Kind) Title() string {
	return map[Kind]string{Readiness: "Readiness", Liveness: "Liveness", Startup: "Startup"}[k]
}

// Of returns the container's probe of this kind, or nil.
func (k Kind) Of(c *v1.Container) *v1.Probe {
	switch k {
	case Readiness:
		return c.ReadinessProbe
	case Liveness:
		return c.LivenessProbe
	default:
		return c.StartupProbe
	}
}

// Outcome of a probe or of a run of them; the zero value stands for none.
type Outcome = proberv1.Outcome

// The outcomes.
const (
	none    = proberv1.Outcome_OUTCOME_UNSPECIFIED
	success = proberv1.Outcome_OUTCOME_SUCCESS
	failure = proberv1.Outcome_OUTCOME_FAILURE
)

// Record is what the probes of one container id came to.
type Record struct {
	ContainerID string
	// Result is the outcome that has reached its threshold last.
	Result Outcome
	// Last is the newest probe's outcome, and Run how many in a row had it, up to its threshold.
	Last Outcome
	Run  int32
	// LastStart is when the newest probe began.
	LastStart time.Time
}

// count takes the outcome of one more probe.
func (r *Record) count(p *v1.Probe, o Outcome) {
	threshold := max(p.SuccessThreshold, 1)
	if o == failure {
		threshold = max(p.FailureThreshold, 1)
	}
	if r.Last != o {
		r.Last, r.Run = o, 0
	}
	r.Run = min(r.Run+1, threshold)
	if r.Run == threshold {
		r.Result = o
	}
}

// forgetRun forgets the count, since an unrecorded probe may have come between. A sequence that it would have ended
// must not continue (a restart needs failureThreshold failures in a row). The result stands.
func (r *Record) forgetRun() { r.Last, r.Run = none, 0 }

// final reports whether the container id needs no more probes of this kind: it has started, or is about
// to be ended.
func (r *Record) final(k Kind) bool {
	return k == Startup && r.Result != none || k == Liveness && r.Result == failure
}

// nearsThreshold reports whether the newest probe spoke against the result, and the threshold is yet to come.
func (r *Record) nearsThreshold() bool {
	return r.Result != none && r.Last != none && r.Last != r.Result
}

// same reports whether two records differ in nothing but the time of their probe.
func (r *Record) same(o *Record) bool {
	return r.ContainerID == o.ContainerID && r.Result == o.Result && r.Last == o.Last && r.Run == o.Run
}

// RecordOf reads a record from its message, for who is connected to this bus. If it came to another bus, what
// was found while that one was away may be missing, and its count is not gone on with.
func RecordOf(m *proberv1.ProbeResult, bus string) Record {
	r := Record{ContainerID: m.GetContainerId(), Result: m.GetResult(), Last: m.GetLast(), Run: m.GetRun()}
	if m.GetLastStart() != nil {
		r.LastStart = m.GetLastStart().AsTime()
	}
	if bus == "" || m.GetBus() != bus {
		r.forgetRun()
	}
	return r
}

// Message is the record as the bus carries it.
func (r *Record) Message(replica string, generation uint64, bus string) *proberv1.ProbeResult {
	m := &proberv1.ProbeResult{
		Result:      r.Result,
		ContainerId: r.ContainerID,
		Last:        r.Last,
		Run:         r.Run,
		Replica:     replica,
		Generation:  generation,
		Bus:         bus,
	}
	if !r.LastStart.IsZero() {
		m.LastStart = timestamppb.New(r.LastStart)
	}
	return m
}
