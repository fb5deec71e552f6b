package scene

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// HungMounters are the folders below /proc of podsync's children that wait in the kernel.
func HungMounters(t *testing.T) []string {
	t.Helper()
	states, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, state := range states {
		process := filepath.Dir(filepath.Dir(filepath.Dir(state)))
		text, err := os.ReadFile(state)
		if err != nil || !strings.Contains(string(text), ") D ") {
			continue
		}
		// The name of the program is that of the file, /proc/self/exe; its arguments are gone once it was killed.
		if strings.Contains(string(text), "(exe)") || strings.Contains(string(text), "(microlet") {
			found[process] = true
		}
	}
	var all []string
	for process := range found {
		all = append(all, process)
	}
	return all
}
