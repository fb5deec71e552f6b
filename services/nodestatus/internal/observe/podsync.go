// Package observe decides from the other services' signs of life whether the node is ready.
//
// Silence is not a failure: while the bus is down, or if this process itself was stopped, the last decision stays.
// Only a service that does not answer a question, or that reports an error, counts as failed.
package observe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

const (
	// PodsyncSlack is for how long podsync may hang, proven, before the Lease and Ready go.
	PodsyncSlack = time.Minute
	// heartbeatPatience is how long the heartbeat may stand still before podsync itself is asked.
	heartbeatPatience = 7 * time.Second
	// idleAllowed is how long podsync's dispatcher may report no round. It does a round every 2 s.
	idleAllowed = 10 * time.Second
	// askTimeout bounds one question.
	askTimeout = 2 * time.Second
	// slept is a pause between two looks that only a stopped process or machine explains.
	slept = 10 * time.Second
)

// HealthClient is podsync's own socket, as far as this needs it.
type HealthClient interface {
	GetHealth(ctx context.Context, in *podsyncv1.GetHealthRequest,
		opts ...grpc.CallOption) (*podsyncv1.GetHealthResponse, error)
}

var _ HealthClient = (podsyncv1.PodsyncServiceClient)(nil)

// Podsync reports whether podsync's dispatcher works: by its heartbeat, and by a request when the heartbeat stands
// still.
type Podsync struct {
	heartbeat func() *busv1.Heartbeat
	client    HealthClient

	mu       sync.Mutex
	seen     bool      // a proof came in this life
	proven   time.Time // the last proof
	looked   time.Time // the last look
	beat     *busv1.Heartbeat
	turns    uint64 // as podsync itself answered last
	answered bool
	problem  error // why there is no proof
}

// NewPodsync returns a judge that grants podsync PodsyncSlack from now on: a restart of this service
// is no reason to stop renewing. heartbeat returns podsync's newest heartbeat, nil if there is none.
func NewPodsync(heartbeat func() *busv1.Heartbeat, client HealthClient) *Podsync {
	now := time.Now()
	return &Podsync{heartbeat: heartbeat, client: client, proven: now, looked: now}
}

// Look looks for a proof. It is to be called every few seconds, and takes askTimeout at most.
func (p *Podsync) Look(ctx context.Context) {
	if p.lookAtHeartbeat(time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := p.client.GetHealth(ctx, &podsyncv1.GetHealthRequest{})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch idle := time.Duration(answer.GetIdleMilliseconds()) * time.Millisecond; {
	case err != nil:
		p.problem = fmt.Errorf("ask podsync for its health: %w", err)
	case idle < idleAllowed || p.answered && answer.GetTurns() != p.turns:
		p.turns, p.answered = answer.GetTurns(), true
		p.prove(time.Now())
	default:
		p.problem = fmt.Errorf("podsync's dispatcher has hung for %v", idle)
	}
}

// lookAtHeartbeat reports whether the heartbeat suffices.
func (p *Podsync) lookAtHeartbeat(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pause := now.Sub(p.looked); pause > slept {
		p.proven = p.proven.Add(pause) // nothing was observed: this process was stopped
	}
	p.looked = now
	beat := p.heartbeat()
	if beat != nil && p.beat != nil && (beat.GetTurns() != p.beat.GetTurns() || beat.GetPid() != p.beat.GetPid() ||
		!beat.GetStarted().AsTime().Equal(p.beat.GetStarted().AsTime())) {
		p.prove(now)
	}
	if beat != nil {
		// The first one may be the last of a podsync that is dead by now: only a change proves anything.
		p.beat = beat
	}
	return p.seen && now.Sub(p.proven) < heartbeatPatience
}

func (p *Podsync) prove(now time.Time) {
	p.seen, p.proven, p.problem = true, now, nil
}

// Turns returns nil while podsync's dispatcher works, as far as is known. The error says since when it does not.
func (p *Podsync) Turns() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := p.looked.Sub(p.proven)
	if age < PodsyncSlack {
		return nil
	}
	return fmt.Errorf("podsync was last seen active %v ago; threshold is %v: %w", age.Round(time.Second), PodsyncSlack,
		p.problem)
}

// Seen reports whether podsync was seen working in this service's life.
func (p *Podsync) Seen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}
