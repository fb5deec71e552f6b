package twins

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// scratch is the folders of one input at a time: what is configured on both sides is also written. They are in
// memory, and used again for the next input.
type scratch struct{ root, kubelets, ours, logs string }

var scratches struct {
	mu   sync.Mutex
	base string
	free []*scratch
}

func takeScratch() *scratch {
	scratches.mu.Lock()
	defer scratches.mu.Unlock()
	if n := len(scratches.free); n > 0 {
		at := scratches.free[n-1]
		scratches.free = scratches.free[:n-1]
		return at
	}
	if scratches.base == "" {
		base, err := os.MkdirTemp("/dev/shm", "twins")
		if err != nil {
			base, err = os.MkdirTemp("", "twins")
		}
		must(err)
		scratches.base = base
	}
	root, err := os.MkdirTemp(scratches.base, "")
	must(err)
	at := &scratch{root, filepath.Join(root, "kubelet"), filepath.Join(root, "ours"), filepath.Join(root, "logs")}
	for _, dir := range []string{at.kubelets, at.ours} {
		must(os.MkdirAll(filepath.Join(dir, "pods", "u1"), 0o750))
	}
	must(os.Mkdir(at.logs, 0o750))
	return at
}

func (at *scratch) giveBack() {
	scratches.mu.Lock()
	defer scratches.mu.Unlock()
	scratches.free = append(scratches.free, at)
}

// removeScratches runs after all tests.
func removeScratches() {
	if scratches.base != "" {
		_ = os.RemoveAll(scratches.base)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// runTests removes what they have written.
func runTests(m *testing.M) int {
	defer removeScratches()
	return m.Run()
}
