// Package local is the program microlet-local: the services that communicate only with other services of the node.
//
// They are in microlet, too, and microlet-local is there only to take less memory: it leaves out the clients of the API
// server, the NATS server and the kubelet's HTTP API, which set up megabytes in every process before main. "microlet
// up" runs these services from the microlet-local beside its own program, if that is of its own version.
package local

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/evictor"
	"github.com/microlet/microlet/services/imagegc"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/pleg"
	"github.com/microlet/microlet/services/prober"
	"github.com/microlet/microlet/services/resources"
	"github.com/microlet/microlet/services/stats"
)

// Program is the program's name.
const Program = service.LocalProgram

// checkTimeout bounds the question of a program for its version.
const checkTimeout = 5 * time.Second

// services returns those of the program.
func services() []service.Definition {
	return []service.Definition{
		pleg.Definition(), prober.Definition(), imagegc.Definition(), stats.Definition(), evictor.Definition(),
		resources.Definition(),
	}
}

// Has reports whether the program has a service.
func Has(r role.Role) bool {
	return slices.ContainsFunc(services(), func(s service.Definition) bool { return s.Role == r })
}

// Command returns the program's command line, with the one service that args begin with, or with all.
func Command(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   Program,
		Short: "The services of a node that need no API server; \"microlet up\" runs them",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q is no service: see %s --help", args[0], Program)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Cobra prints it without a template; see microlet's own --version.
		Version:       telemetry.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(service.ExplainFlag)
	all := services()
	called := func(s service.Definition) bool { return len(args) > 0 && args[0] == string(s.Role) }
	if i := slices.IndexFunc(all, called); i >= 0 {
		all = all[i : i+1] // the flags of the others would stay in memory
	}
	for _, s := range all {
		root.AddCommand(s.Command())
	}
	return root
}

// Check says why the program at a path cannot stand in for this one: it does not run, or is of another version.
func Check(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second // for what it has started and left
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", path, err)
	}
	want := Program + " version " + telemetry.Version
	if got := strings.TrimSpace(string(out)); got != want {
		return fmt.Errorf("%s is of another version: it says %.100q, not %q", path, got, want)
	}
	return nil
}
