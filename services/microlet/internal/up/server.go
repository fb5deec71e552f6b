package up

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/nodecerts"
	"github.com/microlet/microlet/services/microlet/internal/recentlog"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// server answers the commands of the operator.
type server struct {
	supervisorv1.UnimplementedSupervisorServiceServer
	placement  string
	nodeName   string
	agents     agents
	externals  []role.Role
	onDemand   []role.Role // of all services
	heartbeats *bus.View[*busv1.Heartbeat]
	log        *recentlog.Log
	kubelet    *kubeletconfig.Config
	groups     []*supervisorv1.Group
	started    time.Time
}

func newServer(c *Config, a agents, heartbeats *bus.View[*busv1.Heartbeat], log *recentlog.Log) *server {
	return &server{
		placement: c.Placement, nodeName: c.Service.NodeName, agents: a, externals: c.externals(),
		onDemand:   c.onDemandRoles(),
		heartbeats: heartbeats, log: log, kubelet: c.Kubelet, groups: c.groups(), started: time.Now(),
	}
}

// serve registers the server. Only root may call its methods.
func (s *server) serve(on *service.Service) {
	supervisorv1.RegisterSupervisorServiceServer(on.GRPC, s)
	on.Offer(&supervisorv1.SupervisorService_ServiceDesc, role.Up)
}

// GetStatus accounts for the supervisor itself, then for its processes in start order, and last for the services that
// something else starts. Services that share a process have an entry each, and its memory is counted once.
func (s *server) GetStatus(context.Context, *supervisorv1.GetStatusRequest) (*supervisorv1.GetStatusResponse, error) {
	self := supervisor.Process{Name: string(role.Up), State: supervisor.Ready, PID: os.Getpid(), Started: s.started}
	out := &supervisorv1.GetStatusResponse{
		Version:   telemetry.Version,
		Placement: s.placement,
		Pid:       int32(self.PID),
		Started:   timestamppb.New(s.started),
		Processes: []*supervisorv1.Process{s.process(self)},

		Certificates: certificates(s.kubelet),
		Groups:       s.groups,
	}
	for _, p := range slices.Concat(s.agents.Processes(), s.external()) {
		out.Processes = append(out.Processes, s.rows(p)...)
	}
	return out, nil
}

// rows account for a process: one for each of its services, of which the first has the memory.
func (s *server) rows(p supervisor.Process) []*supervisorv1.Process {
	if len(p.Services) == 0 {
		row := s.process(p)
		if s.placement == Single {
			row.Group = Single
		}
		return []*supervisorv1.Process{row}
	}
	alive := p.State == supervisor.Starting || p.State == supervisor.Ready
	rows := make([]*supervisorv1.Process, 0, len(p.Services))
	for i, one := range p.Services {
		own := p
		own.Name = one.Name
		if alive { // else the process's own state is that of all
			own.State, own.Status = one.State, one.Status
		}
		row := s.process(own)
		row.Group = p.Name
		if i > 0 {
			row.PssBytes = 0
		}
		rows = append(rows, row)
	}
	return rows
}

// certificates are those that the configuration names, as they are in their files now.
func certificates(k *kubeletconfig.Config) []*supervisorv1.Certificate {
	if k == nil {
		return nil
	}
	var out []*supervisorv1.Certificate
	for _, c := range nodecerts.Read(k) {
		row := &supervisorv1.Certificate{Name: c.Name, Path: c.Path}
		if c.Err != nil {
			row.Error = c.Err.Error()
		} else {
			row.NotAfter = timestamppb.New(c.NotAfter)
		}
		out = append(out, row)
	}
	return out
}

// RestartProcess restarts one process of the supervisor's.
func (s *server) RestartProcess(_ context.Context,
	r *supervisorv1.RestartProcessRequest) (*supervisorv1.RestartProcessResponse, error) {
	if r.GetProcess() == string(role.Up) {
		return nil, status.Error(codes.FailedPrecondition,
			"up is the agent itself: restart it as it was started, such as with systemctl restart microlet")
	}
	for _, e := range s.externals {
		if name, _, _ := strings.Cut(r.GetProcess(), "."); name == string(e) {
			return nil, status.Errorf(codes.FailedPrecondition,
				"%s is external: restart it by what starts it, such as a unit of its own", e)
		}
	}
	err := s.agents.Restart(r.GetProcess())
	switch {
	case errors.Is(err, supervisor.ErrUnknownProcess):
		return nil, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &supervisorv1.RestartProcessResponse{}, nil
}

func (s *server) process(p supervisor.Process) *supervisorv1.Process {
	out := &supervisorv1.Process{
		Service:                  p.Name,
		State:                    states[p.State],
		Pid:                      int32(p.PID),
		Restarts:                 uint32(p.Restarts),
		LastExit:                 p.LastExit,
		Status:                   p.Status,
		HeartbeatAgeMilliseconds: -1,
		Arguments:                p.Args,
	}
	for _, s := range p.Stuck {
		out.Stuck = append(out.Stuck,
			&supervisorv1.StuckProcess{Pid: int32(s.PID), Since: timestamppb.New(s.Since), WaitsFor: s.WaitsFor})
	}
	if !p.Started.IsZero() {
		out.Started = timestamppb.New(p.Started)
	}
	// The heartbeat of another PID namespace may name any process of this one.
	if p.PID != 0 && p.State != supervisor.External && (s.placement != Single || p.Name == string(role.Up)) {
		if pss, err := supervisor.PSS(p.PID); err == nil { // it may have ended just now
			out.PssBytes = pss
		}
	}
	if p.Name == string(role.Up) {
		out.Version = telemetry.Version
		return out
	}
	s.heard(out)
	return out
}

// heard adds what the process's heartbeat says, if one was heard.
func (s *server) heard(p *supervisorv1.Process) {
	name, replica, several := strings.Cut(p.GetService(), ".")
	if !several {
		replica = service.DefaultReplica
	}
	key := subject.HeartbeatKey(role.Role(name), replica)
	if age, ok := s.heartbeats.Age(key); ok {
		p.HeartbeatAgeMilliseconds = age.Milliseconds()
	}
	if beat, ok := s.heartbeats.Get(key); ok {
		p.Version = beat.GetVersion()
	}
}

// states are the supervisor's, as the wire has them. What was not started yet is about to be.
var states = map[supervisor.State]supervisorv1.State{
	supervisor.Waiting:  supervisorv1.State_STATE_STARTING,
	supervisor.Starting: supervisorv1.State_STATE_STARTING,
	supervisor.Ready:    supervisorv1.State_STATE_READY,
	supervisor.Backoff:  supervisorv1.State_STATE_BACKOFF,
	supervisor.Stopping: supervisorv1.State_STATE_STOPPING,
	supervisor.Stopped:  supervisorv1.State_STATE_STOPPED,
	supervisor.Stuck:    supervisorv1.State_STATE_STUCK,
	supervisor.External: supervisorv1.State_STATE_EXTERNAL,
	supervisor.Idle:     supervisorv1.State_STATE_ON_DEMAND,
}
