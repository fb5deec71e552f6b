package test

import (
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// command runs a command of the operator's against the agent.
func (a *agent) command(args ...string) (string, error) {
	out, err := proctest.Command(a.t.Context(), append(args, "--runtime-dir="+a.runtimeDir())...).CombinedOutput()
	return string(out), err
}

// A service that an operator restarts is another process, and no other service notices.
func TestRestart(t *testing.T) {
	a := newAgent(t)
	a.start()
	before := a.await("all ready, with heartbeats", func(rows map[string]row) bool {
		for _, name := range all[1:] {
			if rows[name].HeartbeatAgeSeconds == nil {
				return false
			}
		}
		return ready(rows)
	})
	out, err := a.command("restart", "pleg")
	if err != nil || !strings.HasPrefix(out, "pleg was restarted: pid ") {
		t.Errorf("%v\n%s", err, out)
	}
	after := a.await("all ready", ready)
	for _, name := range all {
		same := after[name].PID == before[name].PID
		if same == (name == "pleg") || name != "pleg" && after[name].Restarts != 0 {
			t.Errorf("%s had pid %d, and has %d after %d restarts", name, before[name].PID, after[name].PID,
				after[name].Restarts)
		}
	}
	for _, process := range []string{"up", "nodeapi.3"} {
		if out, err := a.command("restart", process); err == nil {
			t.Errorf("%s was restarted: %s", process, out)
		}
	}
	wide, err := a.command("status", "-o", "wide")
	if err != nil || !strings.Contains(wide, "prober --runtime-dir="+a.runtimeDir()) ||
		strings.Count(wide, "v0.0.0-devel") != len(all) {
		t.Errorf("%v\n%s", err, wide)
	}
	a.stop()
}

// The newest lines of the log are there without a journal, also while somebody follows them.
func TestLogs(t *testing.T) {
	a := newAgent(t)
	a.start()
	a.await("all ready", ready)
	out, err := a.command("logs", "bus")
	if err != nil || !strings.Contains(out, `"service":"bus"`) || strings.Contains(out, `"service":"up"`) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = a.command("logs", "--tail=3")
	if err != nil || strings.Count(out, "\n") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	follower := proctest.Command(t.Context(), "logs", "-f", "--tail=0", "--runtime-dir="+a.runtimeDir())
	var followed strings.Builder
	follower.Stdout = &followed
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := a.command("restart", "pleg"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	a.stop() // with a follower
	if err := follower.Wait(); err == nil {
		t.Error("who follows the log of an agent that ends is not told")
	}
	if got := followed.String(); !strings.Contains(got, "restart was asked for") || !strings.Contains(got, `"service":"pleg"`) {
		t.Errorf("followed:\n%s", got)
	}
}
