package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// StateFile is the kubelet's name for the file, below its root folder, that holds the times of the last shutdown.
const StateFile = "graceful_node_shutdown_state"

// state is the content of the file. The first two fields are the kubelet's, which passes over the others.
type state struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
	// PhasePriority and PhaseStartTime are those of the phase that was begun last.
	PhasePriority  int32     `json:"microletPhasePriority"`
	PhaseStartTime time.Time `json:"microletPhaseStartTime"`
	// BootID is the boot that goes down. A kubelet writes none, nor do versions before this field.
	BootID string `json:"microletBootID"`
}

// underWay reports whether the shutdown has begun in this boot and has no end. What another boot has left open was cut
// off. The same counts for a state without a boot: to begin it again gives the pods too much time, to continue what was
// cut off gives them none.
func (s *state) underWay(bootID string) bool {
	return bootID != "" && s.BootID == bootID && !s.StartTime.IsZero() && s.EndTime.IsZero()
}

// load returns the zero state if there is no file.
func load(path string) (state, error) {
	var s state
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return state{}, fmt.Errorf("read the state of the last shutdown: %w", err)
	}
	return s, nil
}

// store replaces the file in one step, and on the disk: the machine goes down soon.
func (s *state) store(path string) (err error) {
	fail := func(err error) error { return fmt.Errorf("write the state of the shutdown: %w", err) }
	data, err := json.Marshal(s)
	if err != nil {
		return fail(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-"+filepath.Base(path))
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fail(errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
