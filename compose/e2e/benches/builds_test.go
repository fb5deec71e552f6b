//go:build bench

package benches

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestBuilds measures another build of microlet, such as that of an earlier commit, and then this one beside it:
// make bench BEFORE=<path>.
func TestBuilds(t *testing.T) {
	before := scene.ExecutableBefore(t)
	scene.Shared.EnsureUp(t)
	// How many pages of a program a process maps depends on how its file came into the page cache: both come alike.
	dir := t.TempDir()
	old, own := copyProgram(t, before, dir, "before"), copyProgram(t, scene.Shared.Executable, dir, "microlet")
	measureInRounds(t, *rounds, func(m *meter) { m.undisturbed(1) },
		contender{name: "before", agent: rig.AgentMicrolet, build: old},
		contender{name: "microlet", agent: rig.AgentMicrolet, build: own})
}

// copyProgram copies a program to the disk under another name.
func copyProgram(t *testing.T, path, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// switchToBuild makes another build of microlet the node's agent. What it serves may lie elsewhere, so that the node
// must do for a sign of its health.
func switchToBuild(n *scene.Node, t *testing.T, executable string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := n.SwitchAgent(ctx, rig.AgentMicrolet, executable); err != nil {
		t.Fatalf("switch to %s: %v", executable, err)
	}
	scene.Current.Agent = rig.Agent(executable) // it is none of those that switchTo knows
	if err := n.WaitNodeReady(ctx); err != nil {
		t.Fatalf("%s: %v", executable, err)
	}
}
