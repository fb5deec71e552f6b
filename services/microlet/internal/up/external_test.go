package up

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

func TestExternalServicesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--external=probe"}, `external has "probe": name services of bus, podsync,`},
		{[]string{"--external=up"}, `external has "up"`},
		{[]string{"--external=prober", "--placement=single"}, "the single placement has all services in one process"},
		{[]string{"--external=bus,podsync,pleg,prober,nodestatus,imagegc,stats,evictor,nodeapi,resources"},
			"nothing is left to supervise"},
	} {
		cfg, err := parse(t, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}

// A lock is for all of the node agent: who waits for it, or yields it, must have podsync and nodestatus end.
func TestALockIsNotForExternalServices(t *testing.T) {
	cfg := prepared(t, Processes, "", "--lock-file="+filepath.Join(t.TempDir(), "lock"))
	for external, refused := range map[role.Role]bool{role.Podsync: true, role.NodeStatus: true, role.Stats: false} {
		cfg.External = []string{string(external)}
		if err := cfg.validateExternal(); (err != nil) != refused {
			t.Errorf("with %s external: %v", external, err)
		}
	}
}

// What is external has a row of its own, after those that run here.
func TestExternalServicesAreAccountedFor(t *testing.T) {
	cfg, err := parse(t, "--external=prober,bus")
	if err != nil {
		t.Fatal(err)
	}
	if want := []role.Role{role.Bus, role.Prober}; !slices.Equal(cfg.externals(), want) {
		t.Errorf("external are %q, want %q", cfg.externals(), want)
	}
	s := newServer(&cfg, accounts{{Name: "podsync", State: supervisor.Ready}},
		bus.Watch[busv1.Heartbeat](unservedBus(t), subject.Heartbeats, ">", nil), nil)
	answer, err := s.GetStatus(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, p := range answer.GetProcesses() {
		rows = append(rows, p.GetService())
		if external := p.GetState() == supervisorv1.State_STATE_EXTERNAL; external != (p.GetService() == "bus" ||
			p.GetService() == "prober") {
			t.Errorf("%s is %v", p.GetService(), p.GetState())
		}
	}
	if want := []string{"up", "podsync", "bus", "prober"}; !slices.Equal(rows, want) {
		t.Errorf("rows are %q, want %q", rows, want)
	}
}

// What is restarted by request are the supervisor's processes alone, and the answer says what to do about others.
func TestRestartByRequest(t *testing.T) {
	cfg, err := parse(t, "--external=prober")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(&cfg, accounts{{Name: "podsync"}}, nil, nil)
	for name, want := range map[string]codes.Code{
		"podsync": codes.OK, "prober": codes.FailedPrecondition, "prober.1": codes.FailedPrecondition,
		"up": codes.FailedPrecondition, "absent": codes.NotFound, "": codes.NotFound,
	} {
		_, err := s.RestartProcess(t.Context(), &supervisorv1.RestartProcessRequest{Process: name})
		if status.Code(err) != want {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	cfg.External = nil
	s = newServer(&cfg, &single{}, nil, nil)
	if _, err := s.RestartProcess(t.Context(), &supervisorv1.RestartProcessRequest{Process: "pleg"}); err == nil ||
		!strings.Contains(err.Error(), "restart the agent") {
		t.Errorf("in the single placement: %v", err)
	}
}

func TestPrepareIsForExternalServices(t *testing.T) {
	for _, args := range [][]string{{"--external=prober"}, {"--placement=single"}} {
		cfg, err := parse(t, append(args, "--runtime-dir="+t.TempDir())...)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Services, cfg.Kubelet = cfg.Services[:0], &kubeletconfig.Config{}
		if len(cfg.External) > 0 {
			cfg.Services = DefaultConfig().Services
		}
		if err := Prepare(t.Context(), cfg); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
