package service

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const warnings = 200

// failingStart is the process of a service that fails to start after warnings.
func failingStart() {
	cmd := &cobra.Command{
		Use:           "service",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			if _, err := telemetry.ProcessLogger(telemetry.LogOptions{}, "service"); err != nil {
				return err
			}
			for i := range warnings {
				slog.Warn("kubelet configuration", "number", i)
			}
			return errors.New("the start fails")
		},
	}
	cmd.SetArgs([]string{})
	Main(cmd)
}

// logAsReplica is the process of a replica that logs a line.
func logAsReplica(dir, replica string) {
	cfg := DefaultConfig()
	cfg.RuntimeDir, cfg.Replica = dir, replica
	s, err := New(cfg, role.Prober)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	s.Log.Info("hello")
	telemetry.ProcessWriter().Flush(flushTimeout)
}

// TestTheLogHasTheProcessesName, which distinguishes replicas. The supervisor takes a line in another name for output
// that is not the log's.
func TestTheLogHasTheProcessesName(t *testing.T) {
	dir := newTestService(t, role.Prober, nil).Config.RuntimeDir
	for replica, want := range map[string]string{
		"0": "msg=hello service=prober\n",
		"1": "msg=hello service=prober.1\n",
	} {
		out, err := proctest.Command(t.Context(), "replica", dir, replica).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("replica %s: %v: logs %s, want %s", replica, err, out, want)
		}
	}
}

// What a service logs before its start fails is on standard error when the process has ended.
func TestAFailingStartLosesNoWarning(t *testing.T) {
	for range 5 {
		out, err := proctest.Command(t.Context(), "failing start").CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Fatalf("ended with %v, want exit code 1:\n%s", err, out)
		}
		for i := range warnings {
			if !strings.Contains(string(out), fmt.Sprintf("number=%d\n", i)) {
				t.Fatalf("warning %d of %d is lost", i, warnings)
			}
		}
		if !strings.HasSuffix(string(out), "service: the start fails\n") {
			t.Errorf("the error is not the last line:\n%s", out)
		}
	}
}
