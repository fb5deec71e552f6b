package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
)

// startTime is how long the loop of a service that is not ready yet may stand still, as with the supervisor.
const startTime = 90 * time.Second

// stageTime is how long the services of one stage have the others wait when the process stops. It is shorter than that
// of the supervisor, within whose time the whole process has to end.
const stageTime = 2 * time.Second

// Member is a service of a group.
type Member struct {
	service.Definition
	Config  service.Config
	Kubelet *kubeletconfig.Config
}

// State is where a service is in its life.
type State int

// The states of a service.
const (
	Waiting  State = iota // not started yet
	Starting              // started, and not ready yet
	Ready                 // said READY=1
	Stopping              // stops
	Stopped               // has ended
)

// Account is what is known of a service.
type Account struct {
	Role    role.Role
	State   State
	Status  string
	Started time.Time
}

// Group is the services of one process.
type Group struct {
	members []Member
	network *service.InProcess

	mu       sync.Mutex
	accounts []Account
}

// New makes a group of services that reach each other by the network. It takes the network's notifications, and passes
// them on to heard if that is not nil.
func New(network *service.InProcess, members []Member, heard func(r role.Role, states ...string)) *Group {
	g := &Group{members: members, network: network}
	for i := range members {
		members[i].Config.Placement = network
		g.accounts = append(g.accounts, Account{Role: members[i].Role})
	}
	network.Notify = func(r role.Role, states ...string) {
		g.take(r, states...)
		if heard != nil {
			heard(r, states...)
		}
	}
	return g
}

// Run runs the services until the context ends, and then stops them in the order of their stages. The end of one of
// them ends all.
func (g *Group) Run(ctx context.Context) error {
	all, ending := run.New(ctx)
	stages := g.stages()
	stop := make([]context.CancelFunc, len(stages))
	ended := make([]sync.WaitGroup, len(stages))
	for i, members := range stages {
		// The services of a stage stop by a context of their own, and not when that of the process ends.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		stop[i] = cancel
		for _, m := range members {
			ended[i].Add(1)
			all.Go(string(m.Role), func(context.Context) error {
				defer ended[i].Done()
				return g.run(own, m)
			})
		}
	}
	<-ending.Done()
	for i := range stages {
		stop[i]()
		if i < len(stages)-1 {
			waitAtMost(&ended[i], stageTime)
		}
	}
	return all.Wait()
}

// run runs one service until the context ends.
func (g *Group) run(ctx context.Context, m Member) error {
	g.update(m.Role, func(a *Account) { a.State, a.Started = Starting, time.Now() })
	err := m.Run(ctx, m.Config, m.Kubelet)
	g.update(m.Role, func(a *Account) { a.State = Stopped })
	if err == nil && ctx.Err() == nil {
		return errors.New("ended by itself")
	}
	return err
}

// stages are the services by the stages of the stop, the first one first.
func (g *Group) stages() [][]Member {
	by := map[int][]Member{}
	var order []int
	for _, m := range g.members {
		if by[m.StopStage] == nil {
			order = append(order, m.StopStage)
		}
		by[m.StopStage] = append(by[m.StopStage], m)
	}
	slices.Sort(order)
	all := make([][]Member, 0, len(order))
	for _, stage := range order {
		all = append(all, by[stage])
	}
	return all
}

// waitAtMost waits for the end of the services of a stage, but not for ever.
func waitAtMost(ended *sync.WaitGroup, most time.Duration) {
	done := make(chan struct{})
	go func() { ended.Wait(); close(done) }()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// take does what a service's notification says.
func (g *Group) take(r role.Role, states ...string) {
	g.update(r, func(a *Account) {
		for _, state := range states {
			switch {
			case state == run.NotifyReady && a.State == Starting:
				a.State = Ready
			case state == run.NotifyStopping:
				a.State = Stopping
			case strings.HasPrefix(state, run.NotifyStatus):
				a.Status = strings.TrimPrefix(state, run.NotifyStatus)
			}
		}
	})
}

func (g *Group) update(r role.Role, f func(*Account)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.accounts {
		if g.accounts[i].Role == r {
			f(&g.accounts[i])
		}
	}
}

// Accounts are those of the services, in start order.
func (g *Group) Accounts() []Account {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.accounts)
}

// NotReady names the services that are not ready.
func (g *Group) NotReady() (names []string) {
	for _, a := range g.Accounts() {
		if a.State != Ready {
			names = append(names, string(a.Role))
		}
	}
	return names
}

// Hung says which service's main loop has stood still for longer than a time; nil if none has. One without a loop has
// stood still since its start, until it is ready. Services that stop are not asked.
func (g *Group) Hung(most time.Duration) error {
	idle := g.network.Idle()
	for _, a := range g.Accounts() {
		still, known := idle[a.Role]
		if !known && a.State == Starting {
			still, known = time.Since(a.Started), true
		}
		if known && (a.State == Ready && still > most || a.State == Starting && still > max(most, startTime)) {
			return fmt.Errorf("%s has stood still for %v", a.Role, still.Round(time.Second))
		}
	}
	return nil
}
