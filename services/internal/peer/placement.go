package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/regularfile"
)

// maxPlacement bounds the file of a Placement. That of ten roles has some hundred bytes.
const maxPlacement = 16 << 10

// Placement maps the users of processes that hold several services to the roles of these services, and the users that
// no process has because of that to none. A user that it does not name has the roles of role.ByUID. Nil is the
// placement in which each service has a process of its own.
type Placement map[int][]role.Role

// Roles are those that a peer with this user may claim.
func (p Placement) Roles(uid int) []role.Role {
	if roles, ok := p[uid]; ok {
		return roles
	}
	return role.ByUID(uid)
}

// Encode is the placement as ReadPlacement reads it.
func (p Placement) Encode() ([]byte, error) {
	data, err := json.Marshal(p)
	return append(data, '\n'), err
}

// ReadPlacement reads what "microlet up" wrote into the runtime folder, where only root can write. It is nil if there
// is no such file. A file that is no placement is an error: no peer has a role by it.
func ReadPlacement(path string) (Placement, error) {
	f, err := regularfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("placement: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPlacement))
	if err != nil {
		return nil, fmt.Errorf("placement: %w", err)
	}
	var p Placement
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("placement %s: %w", path, err)
	}
	for _, uid := range slices.Sorted(maps.Keys(p)) {
		for _, r := range p[uid] {
			if _, err := role.Get(r); err != nil {
				return nil, fmt.Errorf("placement %s: uid %d: %w", path, uid, err)
			}
		}
	}
	return p, nil
}
