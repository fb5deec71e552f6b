package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// record is what is known of a machine, in a file of its folder.
type record struct {
	Name        string         `json:"name"`
	ID          string         `json:"id"` // the machine's machine-id
	Assets      Assets         `json:"assets"`
	Memory      int            `json:"memory"`
	CPUs        int            `json:"cpus"`
	Link        Link           `json:"link"`
	Private     bool           `json:"private"` // the link is in a network namespace of the machine's own
	Detached    bool           `json:"detached"`
	Cgroups     []string       `json:"cgroups,omitempty"`
	BootTimeout time.Duration  `json:"bootTimeout"`
	BootID      string         `json:"bootID"` // of this machine: the process is of that boot
	Process     process.Record `json:"process"`
}

const recordFile = "machine.json"

func (r record) save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the machine's record: %w", err)
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".half", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the machine's record: %w", err)
	}
	if err := os.Rename(path+".half", path); err != nil {
		return fmt.Errorf("write the machine's record: %w", err)
	}
	return nil
}

func load(dir string) (record, error) {
	var r record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, fmt.Errorf("read the machine's record: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read the machine's record: %w", err)
	}
	return r, nil
}
