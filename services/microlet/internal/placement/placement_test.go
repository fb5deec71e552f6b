package placement

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
)

// all are the services in start order.
func all() []role.Role {
	return slices.DeleteFunc(role.All(), func(r role.Role) bool { return r == role.Up })
}

func mustParse(t *testing.T, text string) Partition {
	t.Helper()
	p, err := Parse(text, all())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParse(t *testing.T) {
	for text, want := range map[string][]string{
		Processes:                       nil,
		"podsync,bus":                   nil,
		"pleg":                          nil,
		"nodestatus+bus":                {"bus+nodestatus"},
		"stats+pleg,prober,evictor+bus": {"pleg+stats", "bus+evictor"},
		Compact:                         {"bus+nodestatus", "pleg+prober+imagegc+stats+evictor"},
		Single:                          {"bus+podsync+pleg+prober+nodestatus+imagegc+stats+evictor+nodeapi+resources"},
	} {
		p := mustParse(t, text)
		var got []string
		for _, g := range p.Groups() {
			got = append(got, g.Name())
		}
		if !slices.Equal(got, want) || p.Single != (text == Single) {
			t.Errorf("%s has the groups %q, want %q", text, got, want)
		}
	}
}

func TestBadPlacements(t *testing.T) {
	for text, want := range map[string][]string{
		"":                   {`placement is ""`, "is empty", CompactGroups},
		"bus+":               {`placement is "bus+"`, "is empty"},
		"bus,,pleg":          {`"bus,,pleg"`, "is empty"},
		"bus + pleg":         {`"bus " is no service`},
		"bus+kubelet":        {`"kubelet" is no service`, "processes, compact, single", "nodeapi, resources"},
		"up+bus":             {`"up" is no service`},
		"both":               {`"both" is no service`},
		"bus+pleg,stats+bus": {"names bus twice", "in one group"},
		"pleg+pleg":          {"names pleg twice"},
		"compact,pleg":       {"compact is a placement by itself"},
		"single+pleg":        {"single is a placement by itself"},
	} {
		_, err := Parse(text, all())
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v lacks %q", text, err, part)
			}
		}
	}
}

// No service is in two groups, and none is lost, whatever is written.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{Processes, Compact, Single, CompactGroups, "bus+pleg,stats", "+", ",", "bus+bus"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text, all())
		if err != nil {
			if len(p.Groups()) > 0 || !strings.Contains(err.Error(), "placement is ") {
				t.Errorf("%q: %v, with %v", text, err, p.Groups())
			}
			return
		}
		seen := map[role.Role]bool{}
		for _, g := range p.Groups() {
			for _, r := range g {
				if seen[r] || !slices.Contains(all(), r) || len(g) < 2 || p.Of(r).Name() != g.Name() {
					t.Errorf("%q: %s in %s", text, r, g.Name())
				}
				seen[r] = true
			}
		}
		again, err := Parse(groupsText(p), all())
		if len(p.Groups()) > 0 && !p.Single && (err != nil || !reflect.DeepEqual(again.Groups(), p.Groups())) {
			t.Errorf("%q is %v, and read again %v: %v", text, p.Groups(), again.Groups(), err)
		}
	})
}

func groupsText(p Partition) string {
	var names []string
	for _, g := range p.Groups() {
		names = append(names, g.Name())
	}
	return strings.Join(names, ",")
}

func TestIdentities(t *testing.T) {
	p := mustParse(t, "bus+nodestatus,stats+evictor+nodeapi,podsync+pleg")
	for r, want := range map[role.Role]int{
		role.Bus: 47101, role.NodeStatus: 47101, role.Stats: 47106, role.Evictor: 47106, role.NodeAPI: 47106,
		role.Podsync: 0, role.PLEG: 0, role.Prober: 47104,
	} {
		id, err := p.Identity(r)
		if err != nil || id.UID != want || id.Role != r || (id.GID == 0) != (want == 0) {
			t.Errorf("%s runs as %+v, want uid %d: %v", r, id, want, err)
		}
	}
	id, err := p.Of(role.NodeAPI).Identity()
	want := role.Identity{
		Role: role.Stats, UID: 47106, GID: role.GroupNode, Groups: []int{role.GroupLogs},
		HostGroups: []string{"adm", "systemd-journal"}, Capabilities: []string{"CAP_DAC_READ_SEARCH", "CAP_SYSLOG"},
	}
	if err != nil || !reflect.DeepEqual(id, want) {
		t.Errorf("the group is %+v, want %+v: %v", id, want, err)
	}
	if got := p.Of(role.NodeAPI).Privileges(id); got !=
		"uid 47106; groups adm, systemd-journal, 47109; CAP_DAC_READ_SEARCH, CAP_SYSLOG" {
		t.Error(got)
	}
	root, err := p.Of(role.PLEG).Identity()
	if err != nil || root.UID != 0 || root.Capabilities != nil || !root.APICredentials {
		t.Errorf("the group of podsync is %+v: %v", root, err)
	}
	single := mustParse(t, Single)
	if id, err := single.Identity(role.Stats); err != nil || id.UID != 0 || id.GID != 0 {
		t.Errorf("in the single placement, stats is %+v: %v", id, err)
	}
}

// TestRoles: the table gives no user a role of a service that its process does not hold.
func TestRoles(t *testing.T) {
	for _, text := range []string{Processes, Single} {
		if table := mustParse(t, text).Roles(); table != nil {
			t.Errorf("%s has the table %v", text, table)
		}
	}
	for text, want := range map[string]peer.Placement{
		Compact: {
			47101: {role.Bus, role.NodeStatus}, 47103: {},
			47102: {role.PLEG, role.Prober, role.ImageGC, role.Stats, role.Evictor}, 47104: {}, 47105: {}, 47106: {}, 47107: {},
		},
		"pleg+podsync": {0: {role.PLEG, role.Podsync, role.Up}, 47102: {}},
	} {
		table := mustParse(t, text).Roles()
		if len(table) != len(want) {
			t.Errorf("%s: %v, want %v", text, table, want)
		}
		for uid, roles := range want {
			got := slices.Clone(table.Roles(uid))
			slices.Sort(got)
			slices.Sort(roles)
			if !slices.Equal(got, roles) {
				t.Errorf("%s: uid %d has the roles %v, want %v", text, uid, got, roles)
			}
		}
		if got := table.Roles(47108); !slices.Equal(got, []role.Role{role.NodeAPI}) {
			t.Errorf("%s: nodeapi's own user has %v", text, got)
		}
	}
}

func TestRootAtTheEdge(t *testing.T) {
	for text, want := range map[string]bool{
		"podsync+nodeapi": true, "resources+nodeapi": true, "bus+nodeapi+podsync": true, Single: true,
		"stats+nodeapi": false, "podsync+pleg": false, "resources+pleg": false, "bus+nodestatus": false,
	} {
		if got := mustParse(t, text).Groups()[0].RootAtTheEdge(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
