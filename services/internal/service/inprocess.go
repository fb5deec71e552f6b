package service

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// InProcess is the single placement: what the services of one process reach each other by. Its zero
// value is ready, and it is safe for concurrent use.
type InProcess struct {
	// Notify gets what a service would send to its supervisor, as sd_notify lines. Nil drops them.
	Notify func(r role.Role, states ...string)

	network unixgrpc.InProcess

	mu     sync.Mutex
	bus    nats.InProcessConnProvider
	pulses map[role.Role]*Pulse
}

var _ nats.InProcessConnProvider = (*InProcess)(nil)

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

// join makes a service's pulse known to the supervisor of the process.
func (p *InProcess) join(r role.Role, pulse *Pulse) {
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
