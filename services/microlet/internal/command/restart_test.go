package command

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
)

// RestartProcess gives the process another PID, and the one that never comes back none.
func (u *fakeUp) RestartProcess(_ context.Context,
	r *supervisorv1.RestartProcessRequest) (*supervisorv1.RestartProcessResponse, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.restarted = append(u.restarted, r.GetProcess())
	for _, p := range u.processes {
		if p.GetService() != r.GetProcess() {
			continue
		}
		if p.GetState() == supervisorv1.State_STATE_EXTERNAL {
			return nil, status.Error(codes.FailedPrecondition, p.GetService()+" is external")
		}
		p.Restarts++
		p.Pid += 100
		if p.GetService() == "stats" {
			p.State, p.Status = supervisorv1.State_STATE_STARTING, "waits"
		}
	}
	return &supervisorv1.RestartProcessResponse{}, nil
}

func TestRestartCommand(t *testing.T) {
	u := &fakeUp{processes: []*supervisorv1.Process{
		process("pleg", supervisorv1.State_STATE_READY, 8, time.Second),
		process("prober", supervisorv1.State_STATE_READY, 9, time.Second),
		process("prober.1", supervisorv1.State_STATE_BACKOFF, 10, time.Second),
		process("stats", supervisorv1.State_STATE_READY, 11, time.Second),
		process("bus", supervisorv1.State_STATE_EXTERNAL, 12, time.Second),
	}}
	dir := u.serve(t)
	out, err := execute(t, "restart", "prober", "--runtime-dir="+dir)
	_, restarted := u.got()
	if err != nil || !strings.Contains(out, "prober was restarted: pid 109 is ready") ||
		!strings.Contains(out, "prober.1 was restarted: pid 110 is backoff") ||
		restarted != "prober prober.1" {
		t.Errorf("%v, %q\n%s", err, restarted, out)
	}
	_, err = execute(t, "restart", "prober.1", "--runtime-dir="+dir)
	if _, restarted := u.got(); err != nil || restarted != "prober prober.1 prober.1" {
		t.Errorf("one replica: %v, %q", err, restarted)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"restart", "stats", "--timeout=1s"},
			"stats is not ready 1s after it was asked to restart: it is starting, waits"},
		{[]string{"restart", "bus"}, "bus is external"},
		{[]string{"restart", "evictor"}, `"evictor" does not run on this node`},
		{[]string{"restart", "plge"}, `"plge" is no service: name one of`},
		{[]string{"restart"}, "name a service"},
		{[]string{"restart", "pleg", "--timeout=0s"}, "timeout is 0s"},
		{[]string{"restart", "pleg", "--runtime-dir=" + t.TempDir()}, "microlet up is not running"},
	} {
		if !strings.Contains(strings.Join(c.args, " "), "--runtime-dir") {
			c.args = append(c.args, "--runtime-dir="+dir)
		}
		if got := refused(t, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%q: %s", c.args, got)
		}
	}
	out, err = execute(t, "__complete", "restart", "")
	if err != nil || !strings.HasPrefix(out, "bus\npodsync\npleg\n") || !strings.Contains(out, "\nall\n") {
		t.Errorf("completes %q, %v", out, err)
	}
}

// With "all" each service that the supervisor runs is restarted, and none that something else starts or nothing needs.
func TestRestartAll(t *testing.T) {
	u := &fakeUp{processes: []*supervisorv1.Process{
		process("up", supervisorv1.State_STATE_READY, 7, -1),
		process("bus", supervisorv1.State_STATE_READY, 8, time.Second),
		process("pleg", supervisorv1.State_STATE_EXTERNAL, 9, time.Second),
		process("prober", supervisorv1.State_STATE_READY, 10, time.Second),
		process("prober.1", supervisorv1.State_STATE_READY, 11, time.Second),
		process("resources", supervisorv1.State_STATE_ON_DEMAND, 0, -1),
	}}
	dir := u.serve(t)
	out, err := execute(t, "restart", "all", "--runtime-dir="+dir)
	if _, restarted := u.got(); err != nil || restarted != "bus prober prober.1" {
		t.Errorf("%v, %q\n%s", err, restarted, out)
	}
	// The first that does not become ready is the last.
	u = &fakeUp{processes: []*supervisorv1.Process{
		process("stats", supervisorv1.State_STATE_READY, 8, time.Second),
		process("evictor", supervisorv1.State_STATE_READY, 9, time.Second),
	}}
	got := refused(t, "restart", "all", "--timeout=1s", "--runtime-dir="+u.serve(t))
	if _, restarted := u.got(); restarted != "stats" || !strings.Contains(got, "stats is not ready 1s after") {
		t.Errorf("%q: %s", restarted, got)
	}
}
