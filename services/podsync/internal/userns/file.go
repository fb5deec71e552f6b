package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/regularfile"
)

const (
	// fileName is the kubelet's, in the pod's folder.
	fileName = "userns"
	// maxFile is far more than a file with one range takes.
	maxFile = 4096
)

// mappings is what the kubelet's file says.
type mappings struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// parse reads what a file says.
func parse(data []byte) (Range, error) {
	var m mappings
	if err := json.Unmarshal(data, &m); err != nil {
		return Range{}, fmt.Errorf("it is no JSON of ID mappings: %w", err)
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 {
		return Range{}, fmt.Errorf("it has %d mappings of users and %d of groups: one of each is right", len(m.UIDs),
			len(m.GIDs))
	}
	users := m.UIDs[0]
	if users != m.GIDs[0] {
		return Range{}, fmt.Errorf("users are mapped to %v and groups to %v: they must be alike", users, m.GIDs[0])
	}
	if users.ContainerID != 0 {
		return Range{}, fmt.Errorf("the pod's IDs begin at %d and not at 0", users.ContainerID)
	}
	r := Range{First: users.HostID, Length: users.Length}
	return r, r.check()
}

func format(r Range) ([]byte, error) {
	m := []mapping{{HostID: r.First, Length: r.Length}}
	return json.Marshal(mappings{UIDs: m, GIDs: m})
}

// read reads the file in a pod's folder; os.ErrNotExist if there is none. Nothing that was put in its place is followed
// or opened.
func read(dir string) (_ Range, err error) {
	f, err := regularfile.Open(filepath.Join(dir, fileName))
	if err != nil {
		return Range{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Range{}, err
	}
	if len(data) > maxFile {
		return Range{}, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return parse(data)
}

// write puts the range into the file of a pod's folder. It is on the disk afterwards: after a power cut, the pod's
// range must not be free.
func write(dir string, r Range) error {
	data, err := format(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, fileName), data,
		atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true})
}
