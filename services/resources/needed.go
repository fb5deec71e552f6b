package resources

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/regularfile"
)

const (
	// checkpointFile is the kubelet's, in which granted devices are.
	checkpointFile = "kubelet_internal_checkpoint"
	// maxCheckpoint is more than is read of it to see whether it has entries.
	maxCheckpoint = 64 << 20
)

// needed reports whether pods have devices, or plugins were registered, as the checkpoint in the folder says. One that
// cannot be read is for the process to judge.
func needed(folder string) bool {
	f, err := regularfile.Open(filepath.Join(folder, checkpointFile))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	var file struct {
		Data struct {
			PodDeviceEntries  []json.RawMessage
			RegisteredDevices map[string]json.RawMessage
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, maxCheckpoint)).Decode(&file); err != nil {
		return true
	}
	return len(file.Data.PodDeviceEntries)+len(file.Data.RegisteredDevices) > 0
}
