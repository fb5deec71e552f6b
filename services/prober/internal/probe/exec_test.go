package probe

import (
	"context"
	"runtime"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestACommandThatCannotRun is longer than what execve takes: the probe has no result, and the runtime is not asked.
func TestACommandThatCannotRun(t *testing.T) {
	p := New(Options{Execs: 1, Runtime: runtimeOf{
		exec: func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
			t.Error("the runtime is asked")
			return &runtimeapi.ExecSyncResponse{}, nil
		},
	}})
	target := command("sh", "-c", strings.Repeat("$(NAME)", 100_000))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := p.Probe(t.Context(), target)
	runtime.ReadMemStats(&after)
	if want := "exec.command[2]: 500000 bytes after expansion, at most "; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, %v, want %q", got.Outcome, err, want)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 100<<10 {
		t.Errorf("%d KiB allocated", allocated>>10)
	}
}
