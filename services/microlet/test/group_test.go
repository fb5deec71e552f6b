package test

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestGroups runs services that share processes: each process has the privileges of its services, ends and hangs alone,
// and is restarted as a whole.
func TestGroups(t *testing.T) {
	a := newAgent(t, "--placement=bus+nodestatus,podsync+pleg,stats+evictor+prober", "--watchdog=5s")
	a.start()
	rows := a.await("all ready, with heartbeats", func(rows map[string]row) bool {
		for _, name := range all[1:] {
			if rows[name].HeartbeatAgeSeconds == nil {
				return false
			}
		}
		return ready(rows)
	})
	same := func(rows map[string]row, names ...string) bool {
		for _, name := range names {
			if rows[name].PID != rows[names[0]].PID {
				return false
			}
		}
		return true
	}
	if !same(rows, "bus", "nodestatus") || !same(rows, "podsync", "pleg") || !same(rows, "stats", "evictor", "prober") ||
		same(rows, "bus", "podsync") || same(rows, "imagegc", "nodeapi") {
		t.Errorf("the processes are %+v", rows)
	}
	for name, want := range map[string]struct {
		uid          string
		capabilities []string
	}{
		"bus": {"47101", nil}, "stats": {"47104", []string{"CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}}, "imagegc": {"47105", nil},
	} {
		uid, _, _ := strings.Cut(procStatus(t, rows[name].PID, "Uid"), " ")
		has := procStatus(t, rows[name].PID, "CapEff")
		if uid != want.uid || has != capabilityMask(t, want.capabilities) {
			t.Errorf("%s runs as %s with %s, want %v", name, uid, has, want)
		}
	}

	if err := syscall.Kill(rows["evictor"].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	now := a.await("stats, evictor and prober again", func(now map[string]row) bool {
		return now["stats"].Restarts == 1 && ready(now)
	})
	if now["prober"].Restarts != 1 || !same(now, "stats", "evictor", "prober") || now["bus"].PID != rows["bus"].PID ||
		now["podsync"].PID != rows["podsync"].PID {
		t.Errorf("after the end of one process they are %+v", now)
	}
	if err := syscall.Kill(rows["pleg"].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	a.await("podsync and pleg again", func(now map[string]row) bool {
		return now["podsync"].Restarts == 1 && now["pleg"].Restarts == 1 && ready(now)
	})
	if out, err := a.command("restart", "nodestatus"); err != nil ||
		!strings.HasPrefix(out, "the process of bus, nodestatus was restarted") {
		t.Errorf("restart: %v, %s", err, out)
	}
	if now := a.await("all ready", ready); now["bus"].Restarts != 1 || now["nodeapi"].PID != rows["nodeapi"].PID {
		t.Errorf("after the restart of nodestatus, they are %+v", now)
	}
	a.stop()
}

// refusals are the messages about a peer that has not the role which it needs.
var refusals = regexp.MustCompile(`"msg":"(gRPC call denied|refused a connection to the bus|request on the socket of metrics denied)"`)

// TestPlacementsFollowEachOther starts a node in one placement after the other, in the same folders.
func TestPlacementsFollowEachOther(t *testing.T) {
	a := newAgent(t)
	for _, placement := range []string{"processes", "compact", "podsync+nodestatus,pleg+stats", "single", "compact",
		"processes"} {
		a.args = []string{"--placement=" + placement}
		a.start()
		a.await("all ready, with heartbeats, with --placement="+placement, func(rows map[string]row) bool {
			for _, name := range all[1:] {
				if rows[name].HeartbeatAgeSeconds == nil {
					return false
				}
			}
			return ready(rows)
		})
		for line := range strings.Lines(a.Log.String()) {
			if refusals.MatchString(line) {
				t.Errorf("%s: %s", placement, line)
			}
		}
		a.stop()
	}
}
