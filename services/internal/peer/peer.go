package peer

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/microlet/microlet/proto/role"
)

// Peer is the other end of a connection.
type Peer struct {
	// UID and PID are the kernel's word for who connected (SO_PEERCRED): of a client at its connect,
	// of a server at its listen. Inside one process they are this process's.
	UID int
	PID int
	// Roles are those that the peer may act as; none for a stranger. Root may act as more than one.
	Roles []role.Role
	// Reason says why a peer has none of its user's roles; empty if it has them, or if its user has none.
	Reason string
}

// Is reports whether the peer may act as r.
func (p Peer) Is(r role.Role) bool { return slices.Contains(p.Roles, r) }

// Serves reports whether a server that is this peer may be taken for r: it has the role, or is root and no stranger.
func (p Peer) Serves(r role.Role) bool { return p.Is(r) || p.UID == 0 && len(p.Roles) > 0 }

// String names the peer for errors and logs.
func (p Peer) String() string {
	if p.Reason != "" {
		return fmt.Sprintf("uid %d (pid %d): %s", p.UID, p.PID, p.Reason)
	}
	return fmt.Sprintf("uid %d (pid %d, roles %v)", p.UID, p.PID, p.Roles)
}

// Rules say which processes have the roles of their user. The zero value accepts those that live in this
// process's own cgroups.
type Rules struct {
	// Roles maps a UID to its roles. Default: those of Placement.
	Roles func(uid int) []role.Role
	// Placement is the file that says which users have the roles of several services (see ReadPlacement). It is read for
	// each peer, since services that something else starts outlive a placement. Empty, or a file that is not there, leaves
	// each user its own role.
	Placement string
	// Cgroups are further cgroups with processes of the node agent, each as its path below the root of the hierarchies,
	// such as /system.slice/microlet-bus.service. A path that ends in "/*" names every cgroup right below it.
	Cgroups []string
	// Helpers is the folder of the helper pods that podsync has admitted (see Helpers). Empty accepts none.
	Helpers string
}

// Identify says who is at the other end. A process that has ended, and one that cannot be seen, is an error; a
// stranger is a Peer without roles.
func Identify(conn *net.UnixConn, rules Rules) (Peer, error) {
	return identify(conn, rules, holdByConnection)
}

// identify takes the way in which the peer is held, because tests try each on every kernel.
func identify(conn *net.UnixConn, rules Rules, hold holder) (Peer, error) {
	cred, err := credentials(conn)
	if err != nil {
		return Peer{}, err
	}
	p := Peer{UID: int(cred.Uid), PID: int(cred.Pid)}
	roles, err := rules.rolesOf(p.UID)
	if err != nil {
		return Peer{}, fmt.Errorf("peer with uid %d: %w", p.UID, err)
	}
	if len(roles) == 0 {
		return p, nil // a stranger wherever it lives
	}
	theirs, err := hold(conn, cred)
	if err != nil {
		return Peer{}, fmt.Errorf("peer with uid %d: %w", p.UID, err)
	}
	ours, err := readCgroups("self")
	if err != nil {
		return Peer{}, fmt.Errorf("own cgroups: %w", err)
	}
	p.Roles, p.Reason = rules.judge(p.UID, roles, theirs, ours)
	return p, nil
}

// rolesOf returns the roles of a user.
func (r Rules) rolesOf(uid int) ([]role.Role, error) {
	if r.Roles != nil {
		return r.Roles(uid), nil
	}
	if r.Placement == "" {
		return role.ByUID(uid), nil
	}
	placement, err := ReadPlacement(r.Placement)
	return placement.Roles(uid), err
}

// judge returns those of the user's roles that a process in these cgroups has, or why it has none.
func (r Rules) judge(uid int, roles []role.Role, theirs, ours cgroups) ([]role.Role, string) {
	theirs, ours = theirs.instance(), ours.instance()
	if theirs.equal(ours) {
		return roles, ""
	}
	if slices.ContainsFunc(r.Cgroups, theirs.within) {
		return roles, ""
	}
	pods := theirs.pods(ours.around())
	switch {
	case len(pods) == 0 && uid == 0:
		return roles, ""
	case len(pods) == 0:
		return nil, fmt.Sprintf("its cgroup %s is not the node agent's", theirs)
	case uid == 0:
		return nil, fmt.Sprintf("it is root in the pod %s", pods[0])
	case len(pods) > 1:
		return nil, fmt.Sprintf("its cgroups are those of several pods: %v", pods)
	}
	helper, err := HelperRole(r.Helpers, pods[0])
	switch {
	case err != nil:
		return nil, err.Error()
	case helper == "":
		return nil, fmt.Sprintf("it lives in the pod %s, which is no helper", pods[0])
	case !slices.Contains(roles, helper):
		return nil, fmt.Sprintf("it lives in the pod %s, which is a helper for %s alone", pods[0], helper)
	}
	return []role.Role{helper}, ""
}

// errEnded says that no process is left to be judged.
var errEnded = errors.New("the process has ended")
