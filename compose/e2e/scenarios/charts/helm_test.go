//go:build long

package charts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// helmTime bounds one run of Helm. Those that wait for pods have a limit of their own below it.
const helmTime = 4 * time.Minute

// helm runs the real Helm against a node.
type helm struct {
	t       *testing.T
	program string
	charts  string
	env     []string
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	program, err := rig.Helm(t.Context(), rig.Options{Out: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	top, err := scene.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return &helm{
		t: t, program: program, charts: filepath.Join(top, "charts"),
		env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + os.DevNull},
	}
}

// at has Helm speak to the cluster of a scene.
func (h *helm) at(s *scene.Scene) {
	h.env[2] = "KUBECONFIG=" + s.Kubeconfig()
}

// chart is the folder of a chart.
func (h *helm) chart(name string) string { return filepath.Join(h.charts, name) }

// try runs Helm.
func (h *helm) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), helmTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %v: %w\n%s", args, err, out)
	}
	return string(out), err
}

// run is try that must succeed.
func (h *helm) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}
