package service

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// InProcess is what the services of one process reach each other by. Its zero value is ready, and it is safe for
// concurrent use. Its fields are set before the services are made.
type InProcess struct {
	// Roles are the services of the process. Nil is all of the node, as in the single placement.
	Roles []role.Role
	// Supervisor keeps files for the services over a restart of the process; nil keeps none.
	Supervisor *run.Notifier
	// Inherited is what the supervisor gave the process. No two services may have a use for one of these files.
	Inherited run.Inheritance
	// Notify gets what a service would send to its supervisor, as sd_notify lines. Nil drops them.
	Notify func(r role.Role, states ...string)

	network unixgrpc.InProcess

	mu     sync.Mutex
	bus    nats.InProcessConnProvider
	pulses map[role.Role]*Pulse
}

var _ nats.InProcessConnProvider = (*InProcess)(nil)

// Has reports whether the service runs in the process. A nil InProcess has none.
func (p *InProcess) Has(r role.Role) bool {
	return p != nil && (p.Roles == nil || slices.Contains(p.Roles, r))
}

// SetBus says where the bus is; the bus service calls it when its server is up, and with nil when it
// ends.
func (p *InProcess) SetBus(server nats.InProcessConnProvider) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bus = server
}

// InProcessConn connects to the bus. Before the bus is up it fails, and the client tries again, as
// it does between processes.
func (p *InProcess) InProcessConn() (net.Conn, error) {
	p.mu.Lock()
	server := p.bus
	p.mu.Unlock()
	if server == nil {
		return nil, errors.New("the bus is not up in this process")
	}
	return server.InProcessConn()
}

func (p *InProcess) notify(r role.Role, states ...string) {
	if p.Notify != nil {
		p.Notify(r, states...)
	}
}

// Join makes the pulse of a service known to what runs the services of the process. Each service does it itself.
func (p *InProcess) Join(r role.Role, pulse *Pulse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulses == nil {
		p.pulses = map[role.Role]*Pulse{}
	}
	p.pulses[r] = pulse
}

// Idle is how long each service's main loop has stood still.
func (p *InProcess) Idle() map[role.Role]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := make(map[role.Role]time.Duration, len(p.pulses))
	for r, pulse := range p.pulses {
		idle[r] = pulse.Idle()
	}
	return idle
}
