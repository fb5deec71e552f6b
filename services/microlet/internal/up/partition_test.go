package up

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/placement"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// specs are those of a placement, by their names.
func specs(t *testing.T, args ...string) map[string]supervisor.Spec {
	t.Helper()
	cfg, err := parse(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Service.RuntimeDir, cfg.Service.NodeName = "/run/x", "n"
	cfg.Kubelet = prepared(t, Processes, "").Kubelet
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	all := map[string]supervisor.Spec{}
	log := slog.New(slog.DiscardHandler)
	for _, u := range cfg.processes() {
		spec, err := cfg.spec(u, programs{own: "/p/microlet"}, &limits{log: log}, log)
		if err != nil {
			t.Fatal(err)
		}
		all[spec.Name] = spec
	}
	return all
}

// TestSpecOfAGroup: a process has what all of its services need, and is restricted by what all of them can do without.
func TestSpecOfAGroup(t *testing.T) {
	all := specs(t, "--placement=bus+nodestatus,pleg+imagegc+evictor,stats+nodeapi,podsync+prober", "--relist-period=3s")
	if len(all) != 5 {
		t.Errorf("%d processes: %v", len(all), all)
	}
	for name, want := range map[string]supervisor.Spec{
		"bus+nodestatus": {
			UID: 47101, StopStage: 2, Path: "/p/microlet", NoNewPrivileges: true,
			Writable: []string{"sock/bus", "bus", "sock/nodestatus"},
		},
		"pleg+imagegc+evictor": {
			UID: 47102, Path: "/p/microlet", PrivateNetwork: true, NoNewPrivileges: true,
			Capabilities: []string{"CAP_DAC_READ_SEARCH", "CAP_SYSLOG"},
			Writable:     []string{"sock/pleg", "sock/imagegc", "/var/lib/microlet/imagegc", "sock/evictor"},
		},
		"stats+nodeapi": {
			UID: 47106, Path: "/p/microlet", OOMScoreAdj: service.Expendable, Nice: 5, NoNewPrivileges: true,
			Capabilities: []string{"CAP_DAC_READ_SEARCH"}, Writable: []string{"sock/stats", "sock/nodeapi"},
			Exclusive: "the ports of the HTTP API",
		},
		"podsync+prober": {UID: 0, StopStage: 1, Path: "/p/microlet", KeptFiles: 1},
		"resources":      {UID: 47109, Path: "/p/microlet", PrivateNetwork: true, NoNewPrivileges: true},
	} {
		got := all[name]
		for i, path := range want.Writable {
			if !filepath.IsAbs(path) {
				want.Writable[i] = filepath.Join("/run/x", path)
			}
		}
		if got.UID != want.UID || got.StopStage != want.StopStage || got.Path != want.Path ||
			got.PrivateNetwork != want.PrivateNetwork || got.NoNewPrivileges != want.NoNewPrivileges ||
			got.OOMScoreAdj != want.OOMScoreAdj || got.KeptFiles != want.KeptFiles || got.Exclusive != want.Exclusive {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if name != "resources" && (!slices.Equal(got.Capabilities, want.Capabilities) ||
			!slices.Equal(got.Writable, want.Writable) || len(got.Hidden) > 0) {
			t.Errorf("%s: %v, writes to %q and does not see %q, want %v and %q", name, got.Capabilities, got.Writable,
				got.Hidden, want.Capabilities, want.Writable)
		}
		if got.Nice != want.Nice && name != "stats+nodeapi" {
			t.Errorf("%s: its nice is %d", name, got.Nice)
		}
		if (got.OnDemand != nil) != (name == "resources") {
			t.Errorf("%s runs on demand: %v", name, got.OnDemand)
		}
	}
	if got := all["pleg+imagegc+evictor"].Args; !slices.Equal(got[:2], []string{"group", "pleg+imagegc+evictor"}) ||
		!slices.Contains(got, "--runtime-dir=/run/x") || !slices.Contains(got, "--relist-period=3s") ||
		!slices.Contains(got, "--logging-format=text") {
		t.Errorf("arguments are %q", got)
	}
	if got := all["stats+nodeapi"].Args; !slices.Contains(got, "--api-credentials=/run/x/credentials/nodeapi") {
		t.Errorf("arguments of nodeapi are %q", got)
	}
	if got := all["resources"]; len(got.Services) > 0 || got.Args[0] != "resources" || len(got.Hidden) == 0 {
		t.Errorf("resources is %+v", got)
	}
}

// TestOnDemandInAGroup: a service that shares a process runs as long as that.
func TestOnDemandInAGroup(t *testing.T) {
	all := specs(t, "--placement=pleg+resources")
	if got := all["pleg+resources"]; got.OnDemand == nil || !got.OnDemand.Needed() || len(got.Hidden) > 0 ||
		!slices.Equal(got.Capabilities, []string{"CAP_DAC_OVERRIDE"}) {
		t.Errorf("the group is %+v", got)
	}
}

func TestRootsGroupReadsTheOriginals(t *testing.T) {
	all := specs(t, "--placement=podsync+nodeapi", "--placement-force")
	got := all["podsync+nodeapi"]
	if got.UID != 0 || got.NoNewPrivileges || got.Writable != nil || slices.ContainsFunc(got.Args, func(a string) bool {
		return strings.HasPrefix(a, "--api-credentials")
	}) {
		t.Errorf("the group is %+v", got)
	}
}

// TestLimitOfAGroup is the sum, and none if a service has none.
func TestLimitOfAGroup(t *testing.T) {
	cfg := DefaultConfig()
	for text, want := range map[string]int64{
		"bus+nodestatus": 2<<30 + 512<<20, "pleg+imagegc": 512<<20 + 1<<30, "podsync+pleg": 0,
	} {
		cfg.Placement = text
		for _, u := range cfg.processes() {
			if u.name() == text && u.memory() != want {
				t.Errorf("%s may take %d bytes, want %d", text, u.memory(), want)
			}
		}
	}
}

func TestPlacementsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--placement=podsync+nodeapi"}, []string{`placement is "podsync+nodeapi"`, "is root", "--placement-force"}},
		{[]string{"--placement=resources+nodeapi"}, []string{"is root"}},
		{[]string{"--placement=compact", "--prober-replicas=2"}, []string{"prober-replicas is 2", "--placement=compact",
			"pleg+prober+imagegc+stats+evictor", "--placement=processes"}},
		{[]string{"--placement=compact", "--external=stats"}, []string{`external has "stats"`, "--placement=compact"}},
		{[]string{"--placement=bus+bus"}, []string{"names bus twice"}},
		{[]string{"--placement=single", "--external=stats"}, []string{"external is", "single"}},
		{[]string{"--placement=single", "--prober-replicas=2"}, []string{"prober-replicas is 2", "--placement=single"}},
	} {
		cfg, err := parse(t, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		err = cfg.Validate()
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v lacks %q", c.args, err, part)
			}
		}
	}
	for _, args := range [][]string{
		{"--placement=podsync+nodeapi", "--placement-force"}, {"--placement=single"}, {"--placement=compact"},
		{"--placement=bus+nodestatus", "--prober-replicas=3", "--external=stats"},
	} {
		cfg, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.validatePlacement(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestPlacementsFollowEachOther: what one placement made serves the next, whichever that is. No user can read what is
// another's by then.
func TestPlacementsFollowEachOther(t *testing.T) {
	dir := openDir(t)
	cfg := service.Config{RuntimeDir: dir}
	groups := "bus+nodestatus,stats+evictor,pleg+prober"
	for _, text := range []string{Processes, groups, placement.Compact, Processes, Single, groups, Single, Processes} {
		preparedDir(t, dir, text)
		p, err := parsePlacement(text)
		if err != nil {
			t.Fatal(err)
		}
		table, err := peer.ReadPlacement(cfg.PlacementFile())
		if err != nil || len(table) != len(p.Roles()) {
			t.Errorf("%s: the table is %v (%v), want %v", text, table, err, p.Roles())
		}
		for _, r := range role.All() {
			id, err := p.Identity(r)
			if err != nil {
				t.Fatal(err)
			}
			seed, socket := bus.SeedFile(cfg.NKeys(), r), cfg.SocketDir(r)
			for _, path := range []string{seed, socket} {
				if info, err := os.Lstat(path); err != nil || !isOwner(info, id.UID) {
					t.Errorf("%s: %s is not uid %d's: %v", text, path, id.UID, err)
				}
			}
			own, err := role.Get(r)
			if err != nil {
				t.Fatal(err)
			}
			if own.UID == id.UID {
				continue
			}
			if err := asUser(t, own.UID, "cat "+seed); err == nil {
				t.Errorf("%s: %s's own user, which no process has, can read its key", text, r)
			}
		}
		if text == groups {
			if err := asUser(t, 47101, "touch "+cfg.SocketDir(role.NodeStatus)+"/left.sock"); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := os.ReadDir(cfg.SocketDir(role.NodeStatus)); err != nil || len(left) > 0 {
		t.Errorf("left is %v, %v", left, err)
	}
}

// TestCopiesFollowThePlacement: a copy of root's files is its service's, also if it holds the same as before.
func TestCopiesFollowThePlacement(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for i, want := range []struct {
		uid     int
		changed bool
	}{{47103, true}, {47103, false}, {47101, true}, {47103, true}} {
		changed, err := copyFile(path, []byte("secret"), role.Identity{UID: want.uid, GID: role.GroupNode})
		info, statErr := os.Lstat(path)
		if err != nil || statErr != nil || changed != want.changed || !isOwner(info, want.uid) ||
			info.Mode().Perm() != 0o600 {
			t.Errorf("copy %d: changed %v (%v), %v (%v)", i, changed, err, info, statErr)
		}
	}
}

// TestStatusOfAGroup: each service has a row, and the memory of the process is counted once.
func TestStatusOfAGroup(t *testing.T) {
	cfg := Config{Placement: "bus+nodestatus"}
	all := accounts{{
		Name: "bus+nodestatus", State: supervisor.Ready, PID: os.Getpid(), Restarts: 3, LastExit: "signal: killed",
		Services: []supervisor.Service{{Name: "bus", State: supervisor.Ready, Status: "listening"},
			{Name: "nodestatus", State: supervisor.Starting}},
	}}
	s := newServer(&cfg, all, bus.Watch[busv1.Heartbeat](unservedBus(t), subject.Heartbeats, ">", nil), nil)
	answer, err := s.GetStatus(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := answer.GetProcesses()[1:]
	if len(rows) != 2 || rows[0].GetService() != "bus" || rows[0].GetStatus() != "listening" ||
		rows[1].GetState() != supervisorv1.State_STATE_STARTING || rows[1].GetPid() != int32(os.Getpid()) ||
		rows[1].GetRestarts() != 3 || rows[1].GetGroup() != "bus+nodestatus" || rows[0].GetPssBytes() == 0 ||
		rows[1].GetPssBytes() != 0 {
		t.Errorf("rows are %v", rows)
	}
	if g := answer.GetGroups(); len(g) != 1 || g[0].GetName() != "bus+nodestatus" ||
		g[0].GetPrivileges() != "uid 47101; API credentials" || g[0].GetWarning() != "" {
		t.Errorf("groups are %v", g)
	}
	if err := s.knowsLogOf("nodestatus"); err != nil {
		t.Error(err)
	}
	all[0].State, all[0].PID = supervisor.Backoff, 0
	if rows := s.rows(all[0]); rows[0].GetState() != supervisorv1.State_STATE_BACKOFF || rows[0].GetPid() != 0 {
		t.Errorf("after its end the row is %v", rows[0])
	}
}

// TestPrivilegesAreLogged at each start, with a warning where root is at the network's edge.
func TestPrivilegesAreLogged(t *testing.T) {
	for text, want := range map[string]string{
		Processes:         "",
		"bus+nodestatus":  `level=INFO msg="services share a process, and each has the privileges of all" process=bus+nodestatus privileges="uid 47101; API credentials"`,
		Single:            `level=WARN msg="a process that the network reaches is root" process=single`,
		"podsync+nodeapi": `level=WARN msg="a process that the network reaches is root" process=podsync+nodeapi`,
	} {
		var log bytes.Buffer
		cfg := Config{Placement: text}
		cfg.logGroups(slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), want) || want == "" && log.Len() > 0 {
			t.Errorf("%s logs %s", text, log.String())
		}
	}
}
