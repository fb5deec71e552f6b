package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
)

// The placements that have a name.
const (
	// Processes gives each service a process and an identity of its own.
	Processes = "processes"
	// Compact joins services that have much the same privileges.
	Compact = "compact"
	// Single puts all services into the supervisor's own process, for a small node.
	Single = "single"
)

// CompactGroups is the partition of Compact. podsync, which is root, and nodeapi, which the network reaches, stay by
// themselves, and so does resources, which runs on demand.
const CompactGroups = "podsync,bus+nodestatus,pleg+prober+imagegc+evictor+stats,nodeapi"

// joint is between the members of a group.
const joint = "+"

// Names are those of the placements.
func Names() []string { return []string{Processes, Compact, Single} }

// Partition says which services share a process.
type Partition struct {
	// Single is the placement of that name.
	Single bool
	groups []Group
}

// Group are the services of one process, in start order.
type Group []role.Role

// Parse reads a placement of these services, which are in start order.
func Parse(text string, services []role.Role) (Partition, error) {
	switch text {
	case Processes:
		return Partition{}, nil
	case Single:
		return Partition{Single: true, groups: []Group{slices.Clone(services)}}, nil
	case Compact:
		text = CompactGroups
	}
	var p Partition
	group := map[role.Role]string{}
	for _, one := range strings.Split(text, ",") {
		members := Group{}
		for _, name := range strings.Split(one, joint) {
			r := role.Role(name)
			if err := check(text, name, services); err != nil {
				return Partition{}, err
			}
			if _, twice := group[r]; twice {
				return Partition{}, fmt.Errorf("placement is %q: it names %s twice; name each service in one group", text, name)
			}
			group[r] = one
			members = append(members, r)
		}
		slices.SortFunc(members, func(a, b role.Role) int { return slices.Index(services, a) - slices.Index(services, b) })
		if len(members) > 1 {
			p.groups = append(p.groups, members)
		}
	}
	return p, nil
}

// check says what is wrong with the name of a member.
func check(text, name string, services []role.Role) error {
	switch {
	case name == "":
		return fmt.Errorf("placement is %q: a group, or a member of one, is empty; write groups with commas between them, "+
			"and members with %q between them, such as %q", text, joint, CompactGroups)
	case slices.Contains(services, role.Role(name)):
		return nil
	case slices.Contains(Names(), name):
		return fmt.Errorf("placement is %q: %s is a placement by itself; name services, or %s alone", text, name, name)
	}
	names := make([]string, 0, len(services))
	for _, r := range services {
		names = append(names, string(r))
	}
	return fmt.Errorf("placement is %q: %q is no service; use %s, or groups of %s", text, name,
		strings.Join(Names(), ", "), strings.Join(names, ", "))
}

// Groups are those of several services, in the order of the text.
func (p Partition) Groups() []Group { return p.groups }

// Of is the group of a service, which may be the service alone.
func (p Partition) Of(r role.Role) Group {
	for _, g := range p.groups {
		if g.Has(r) {
			return g
		}
	}
	return Group{r}
}

// Identity is what the process of a service runs as. The groups, capabilities and credentials are those that the
// service itself needs.
func (p Partition) Identity(r role.Role) (role.Identity, error) {
	id, err := role.Get(r)
	if err != nil {
		return id, err
	}
	of, err := p.Of(r).Identity()
	if p.Single {
		of.UID, of.GID = 0, 0
	}
	id.UID, id.GID = of.UID, of.GID
	return id, err
}

// Roles is the table of users that differ from role.ByUID: the user of a group has the roles of all members, and those
// of the other members have none. The single placement has no table: root's process is its only one, and root may act
// as any service.
func (p Partition) Roles() peer.Placement {
	if p.Single || len(p.groups) == 0 {
		return nil
	}
	table := peer.Placement{}
	for _, g := range p.groups {
		for _, r := range g {
			id, err := role.Get(r)
			if err == nil && id.UID != 0 {
				table[id.UID] = []role.Role{}
			}
		}
	}
	for _, g := range p.groups {
		id, err := g.Identity()
		if err != nil {
			continue // Parse knows all members
		}
		roles := []role.Role(g)
		if id.UID == 0 {
			roles = append(slices.Clone(role.ByUID(0)), g...)
			slices.Sort(roles)
			roles = slices.Compact(roles)
		}
		table[id.UID] = roles
	}
	return table
}

// Name is how the group is called: by its members, in start order.
func (g Group) Name() string { return strings.Join(g.Names(), joint) }

// Names are those of the members.
func (g Group) Names() []string {
	names := make([]string, 0, len(g))
	for _, r := range g {
		names = append(names, string(r))
	}
	return names
}

// Has reports whether the service is a member.
func (g Group) Has(r role.Role) bool { return slices.Contains(g, r) }

// Identity is what a process of the group runs as, with all that any member has: as root if a member is root's, and
// else as the member that starts first. Which one it is makes no difference to what the process may do, since the other
// members' users have no role then.
func (g Group) Identity() (role.Identity, error) {
	var all role.Identity
	for i, r := range g {
		id, err := role.Get(r)
		if err != nil {
			return all, err
		}
		if i == 0 {
			all.Role, all.UID, all.GID = id.Role, id.UID, id.GID
		}
		if id.UID == 0 {
			all.UID, all.GID = 0, 0
		}
		all.Groups = join(all.Groups, id.Groups)
		all.HostGroups = join(all.HostGroups, id.HostGroups)
		all.Capabilities = join(all.Capabilities, id.Capabilities)
		all.APICredentials = all.APICredentials || id.APICredentials
	}
	if all.UID == 0 { // root has all of it
		all.Groups, all.HostGroups, all.Capabilities = nil, nil, nil
	}
	return all, nil
}

// join adds to a list what it does not have.
func join[E comparable](to, more []E) []E {
	for _, e := range more {
		if !slices.Contains(to, e) {
			to = append(to, e)
		}
	}
	return to
}

// dacOverride opens the files and sockets of every user, root's among them.
const dacOverride = "CAP_DAC_OVERRIDE"

// RootAtTheEdge reports whether who takes over the process from the network has root's rights, or can get them: the
// group has nodeapi, whose ports the network reaches, and a service that is root or opens root's sockets.
func (g Group) RootAtTheEdge() bool {
	if !g.Has(role.NodeAPI) {
		return false
	}
	id, err := g.Identity()
	return err == nil && (id.UID == 0 || slices.Contains(id.Capabilities, dacOverride))
}

// Privileges describes what a process of the group may do, for operators.
func (g Group) Privileges(id role.Identity) string {
	if id.UID == 0 {
		return "root with all capabilities"
	}
	parts := []string{fmt.Sprintf("uid %d", id.UID)}
	if len(id.Groups) > 0 || len(id.HostGroups) > 0 {
		names := slices.Clone(id.HostGroups)
		for _, gid := range id.Groups {
			names = append(names, fmt.Sprint(gid))
		}
		parts = append(parts, "groups "+strings.Join(names, ", "))
	}
	if len(id.Capabilities) > 0 {
		parts = append(parts, strings.Join(id.Capabilities, ", "))
	}
	if id.APICredentials {
		parts = append(parts, "API credentials")
	}
	return strings.Join(parts, "; ")
}
