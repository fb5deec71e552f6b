package checkpoint

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/regularfile"
)

// Used reports whether the file of a folder says that pods have devices or that plugins were registered. It changes
// nothing. A file that cannot be read counts as used: Open reports what is wrong with it.
func Used(folder string) bool {
	f, err := regularfile.Open(filepath.Join(folder, Name))
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
	if err := json.NewDecoder(io.LimitReader(f, maxFile)).Decode(&file); err != nil {
		return true
	}
	return len(file.Data.PodDeviceEntries)+len(file.Data.RegisteredDevices) > 0
}
