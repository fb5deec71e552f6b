// Package role names the services of a node and their privileges.
//
// A peer proves its role by its UID on a unix socket, by its nkey on the bus, or by its connection in a process that
// holds several services. Every table in the project that grants access uses roles as keys.
package role

import "fmt"

// Role is the name of a service, as it appears in "microlet <service>", in subjects,
// in socket names and in logs.
type Role string

// The services of a node, and its supervisor.
const (
	Bus        Role = "bus"
	Podsync    Role = "podsync"
	PLEG       Role = "pleg"
	Prober     Role = "prober"
	NodeStatus Role = "nodestatus"
	ImageGC    Role = "imagegc"
	Stats      Role = "stats"
	Evictor    Role = "evictor"
	NodeAPI    Role = "nodeapi"
	Resources  Role = "resources"
	// Up is the supervisor, "microlet up". It serves its own socket and reads heartbeats.
	Up Role = "up"
)

// The groups of the node. GroupNode owns the runtime folder; GroupLogs may list
// the folders of pod logs, and read the logs that a runtime does not give to root alone.
const (
	GroupNode = 47100
	GroupLogs = 47109
)

// The range of users and groups that are the node agent's, those that no role has yet among them.
const (
	firstID = 47100
	lastID  = 47109
)

// Reserved reports whether the user or group is the node agent's.
func Reserved(id int64) bool { return id >= firstID && id <= lastID }

// Identity is what a process of a role runs as.
type Identity struct {
	Role Role
	// UID is fixed, so that a peer's SO_PEERCRED names its role. Root's is 0.
	UID int
	// GID is the primary group; GroupNode for all but root's.
	GID int
	// Groups are supplementary groups.
	Groups []int
	// HostGroups are groups of the host that the process is in too where they exist, by name.
	HostGroups []string
	// Capabilities that the process keeps, as "CAP_…" names. Nil for root, which keeps all.
	Capabilities []string
	// APICredentials: the process acts at the apiserver as system:node:<name>.
	APICredentials bool
}

// identities is the privilege table of the design; a test reads /proc to hold processes to it.
var identities = []Identity{
	{Role: Bus, UID: 47101, GID: GroupNode},
	{Role: Podsync, UID: 0, GID: 0, APICredentials: true},
	{Role: PLEG, UID: 47102, GID: GroupNode},
	{Role: Prober, UID: 47104, GID: GroupNode},
	{Role: NodeStatus, UID: 47103, GID: GroupNode, APICredentials: true},
	{Role: ImageGC, UID: 47105, GID: GroupNode},
	{Role: Stats, UID: 47106, GID: GroupNode, Capabilities: []string{"CAP_DAC_READ_SEARCH"}},
	{Role: Evictor, UID: 47107, GID: GroupNode, Capabilities: []string{"CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}},
	{Role: NodeAPI, UID: 47108, GID: GroupNode, Groups: []int{GroupLogs}, HostGroups: []string{"adm", "systemd-journal"}},
	// Plugins' sockets are root's, and so are the folders of the files that it shares with the kubelet.
	{Role: Resources, UID: 47109, GID: GroupNode, Capabilities: []string{"CAP_DAC_OVERRIDE"}},
	{Role: Up, UID: 0, GID: 0},
}

// All returns every role in start order: a role comes after the roles that it connects to first.
func All() []Role {
	roles := make([]Role, 0, len(identities))
	for _, id := range identities {
		roles = append(roles, id.Role)
	}
	return roles
}

// Get returns the identity of r; the error names an unknown role.
func Get(r Role) (Identity, error) {
	for _, id := range identities {
		if id.Role == r {
			return id, nil
		}
	}
	return Identity{}, fmt.Errorf("unknown role %q", r)
}

// ByUID returns the roles that a peer with this UID may claim where each service has a process of its own. Root may
// claim podsync and up, which both run as root; an unknown UID may claim nothing.
func ByUID(uid int) []Role {
	var roles []Role
	for _, id := range identities {
		if id.UID == uid {
			roles = append(roles, id.Role)
		}
	}
	return roles
}
