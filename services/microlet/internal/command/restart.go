package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	restartTimeout = time.Minute
	restartLook    = 200 * time.Millisecond
	// allServices is in place of the name of one service.
	allServices = "all"
)

func newRestart() *cobra.Command {
	cfg := service.DefaultConfig()
	timeout := restartTimeout
	cmd := &cobra.Command{
		Use:   "restart SERVICE",
		Short: "Restart one service or, with \"all\", one after the other, and wait until it is ready",
		Long: "Restart one service, such as pleg, and wait until it is ready. Its pods go on running, and so do the\n" +
			"other services, except those that share its process (--placement of \"microlet up\"). Of a service\n" +
			"with several replicas, they are restarted one after the other; prober.1 names one of them.\n" +
			"The service starts with the flags that \"microlet up\" was started with. Only root may do this.\n" +
			"\"all\" restarts one service after the other, and stops at the first that does not become ready. After an\n" +
			"upgrade of the binary each starts from the new one. \"microlet up\" itself goes on as it is, and so do\n" +
			"services that units or containers start.",
		Example: "  microlet restart pleg\n  microlet restart all",
		Args:    service.OneArgument("a service, or all"),
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait for each process")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		names, directive := completeServices(cmd, args, word)
		if len(args) == 0 {
			names = append(names, allServices)
		}
		return names, directive
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkPositive("timeout", timeout); err != nil {
			return err
		}
		service, _, _ := strings.Cut(args[0], ".")
		unit := "microlet-" + service
		if service == allServices {
			unit = "'microlet-*'"
		} else if _, err := findRole(service); err != nil {
			return err
		}
		r := &restarter{socket: cfg.Socket(role.Up), timeout: timeout, out: cmd.OutOrStdout()}
		return withoutSupervisor(r.restart(run.Signals(cmd.Context()), args[0]), cfg.RuntimeDir,
			"restart "+service+" there, such as with systemctl restart "+unit)
	}
	return cmd
}

// completeServices completes the first argument with the names of services.
func completeServices(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, r := range role.All() {
		if len(args) == 0 && r != role.Up {
			names = append(names, string(r))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// restarter restarts processes one after the other.
type restarter struct {
	socket  string
	timeout time.Duration
	out     io.Writer
}

// isTarget reports whether the name asks for a process: by its own name, by its service's, or as one of all that the
// supervisor runs.
func isTarget(p Process, name string) bool {
	of, _, _ := strings.Cut(p.Service, ".")
	if name == allServices {
		return of != string(role.Up) && p.State != "external" && p.State != stateOnDemand
	}
	return p.Service == name || of == name
}

// restart restarts the process of this name, all replicas of the service, or all services.
func (r *restarter) restart(ctx context.Context, name string) error {
	before, err := askUp(ctx, r.socket)
	if err != nil {
		return err
	}
	var targets []Process
	for _, p := range before.Processes {
		if isTarget(p, name) {
			targets = append(targets, p)
		}
	}
	if len(targets) == 0 {
		return fmt.Errorf("%q does not run on this node: see microlet status", name)
	}
	done := map[string]bool{}
	for _, p := range targets {
		if p.Group != "" && done[p.Group] {
			continue
		}
		done[p.Group] = true
		if err := r.one(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// called is what a process is called that was restarted.
func called(p Process) string {
	if p.Group == "" {
		return p.Service
	}
	return "the process of " + strings.ReplaceAll(p.Group, "+", ", ")
}

// one restarts a process and waits for it. One that was not ready before need not become so.
func (r *restarter) one(ctx context.Context, before Process) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	began := time.Now()
	if err := r.ask(ctx, before.Service); err != nil {
		return err
	}
	t := time.NewTicker(restartLook)
	defer t.Stop()
	last := before
	for {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Canceled
			}
			return fmt.Errorf("%s is not ready %v after it was asked to restart: it is %s; see microlet logs %s",
				before.Service, r.timeout, strings.TrimRight(last.State+", "+last.Status, ", "), before.Service)
		case <-t.C:
		}
		now, err := askUp(ctx, r.socket)
		if err != nil {
			continue // the supervisor may be slow for a moment, and the time is limited
		}
		for _, p := range now.Processes {
			if p.Service != before.Service {
				continue
			}
			last = p
			if p.Restarts > before.Restarts && p.PID != 0 && (p.State == "ready" || before.State != "ready") {
				fmt.Fprintf(r.out, "%s was restarted: pid %d is %s after %v\n", called(p), p.PID, p.State,
					time.Since(began).Round(restartLook))
				return nil
			}
		}
	}
}

func (r *restarter) ask(ctx context.Context, process string) error {
	up, closeUp, err := dialUp(r.socket)
	if err != nil {
		return err
	}
	defer closeUp()
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if _, err := up.RestartProcess(ctx, &supervisorv1.RestartProcessRequest{Process: process}); err != nil {
		return explain(err, r.socket)
	}
	return nil
}
