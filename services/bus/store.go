package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kernelBootID is the kernel's name for this boot.
const kernelBootID = "/proc/sys/kernel/random/boot_id"

// layout names how the store is divided into accounts and streams. It changes with them, because what another layout
// holds would not be read or removed.
const layout = "accounts-1"

// prepareStore makes the store's folder, and empties it when it is of another boot or layout: a runtime folder
// need not be a tmpfs, and what an earlier boot's services said would pose as the truth of now.
func prepareStore(dir, bootIDFile string) (emptied bool, err error) {
	raw, err := os.ReadFile(bootIDFile)
	if err != nil {
		return false, fmt.Errorf("boot id: %w", err)
	}
	boot := strings.TrimSpace(string(raw))
	if boot == "" {
		return false, fmt.Errorf("boot id: %s is empty", bootIDFile)
	}
	boot += " " + layout
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	path := filepath.Join(dir, "boot_id")
	known, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("store: %w", err)
	}
	if strings.TrimSpace(string(known)) == boot {
		return false, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return false, fmt.Errorf("empty the store of an earlier boot: %w", err)
		}
		emptied = true
	}
	// Last, so that an interrupted clearing is done again.
	if err := os.WriteFile(path, []byte(boot+"\n"), 0o600); err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	return emptied, nil
}
