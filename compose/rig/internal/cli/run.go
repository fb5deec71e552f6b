package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig"
)

func newRun(out, progress io.Writer) *cobra.Command {
	var o rig.Options
	var d demo
	var begun int64
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Start an instance and stop it on Ctrl-C; a second Ctrl-C kills at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.wanted && o.Standalone && (o.Machine || o.Agent != rig.AgentMicrolet) {
				return errors.New("--demo --standalone needs --agent microlet, and no machine of its own")
			}
			o.Out = progress
			d.begin = time.Now()
			if begun > 0 {
				d.begin = time.Unix(begun, 0)
			}
			return run(cmd.Context(), o, d, out, progress)
		},
	}
	upFlags(cmd, &o)
	flags := cmd.Flags()
	flags.BoolVar(&d.wanted, "demo", false, "show that the node works: a pod of its own as soon as microlet runs, before "+
		"there is a control plane, and then a Deployment of two replicas")
	flags.BoolVar(&o.Standalone, "standalone", false, "build and start no control plane: the node runs its own pods")
	flags.Int64Var(&begun, "begun", 0, "when the command began that this one is a part of, in seconds since 1970; "+
		"what is printed counts from then (default: now)")
	return cmd
}

func run(ctx context.Context, o rig.Options, d demo, out, progress io.Writer) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		i   *rig.Instance
		err error
	}
	started := make(chan result, 1)
	go func() {
		i, err := start(ctx, o, d, out)
		started <- result{i, err}
	}()
	var r result
	select {
	case r = <-started:
	case <-signals:
		_, _ = fmt.Fprintln(progress, "rig: interrupted, stopping")
		cancel()
		r = <-started
	}
	if r.i == nil {
		return r.err
	}
	if r.err == nil && ctx.Err() == nil {
		printHints(out, r.i)
		_, _ = fmt.Fprintln(out, "\nCtrl-C stops it and takes everything away.")
		<-signals
		_, _ = fmt.Fprintln(progress, "rig: stopping; once more Ctrl-C to kill at once")
	}
	return errors.Join(r.err, stop(context.WithoutCancel(ctx), r.i, signals, progress))
}

// start returns what runs, also with an error. A demo need not wait for the control plane to show a pod.
func start(ctx context.Context, o rig.Options, d demo, out io.Writer) (*rig.Instance, error) {
	first := o
	early := d.wanted && !o.Machine && o.Agent == rig.AgentMicrolet
	first.Standalone = o.Standalone || early
	i, err := rig.Up(ctx, first)
	if err != nil || !d.wanted {
		return i, err
	}
	if early {
		if err := d.runPod(ctx, i, out); err != nil {
			return i, err
		}
	}
	if o.Standalone {
		return i, nil
	}
	if early {
		if err := i.Join(ctx, o); err != nil {
			return i, err
		}
	}
	return i, d.runDeployment(ctx, i, out)
}

// stop takes the instance down; a signal meanwhile makes it fast.
func stop(ctx context.Context, i *rig.Instance, signals <-chan os.Signal, progress io.Writer) error {
	gentle, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.Down(gentle) }()
	var err error
	select {
	case err = <-done:
	case <-signals:
		_, _ = fmt.Fprintln(progress, "rig: killing")
		cancel()
		// Without its context the gentle way kills too, but gives up early.
		if err = <-done; err != nil {
			err = i.Down(ctx, rig.Fast)
		}
	}
	if err != nil {
		return err
	}
	left, err := i.Leftovers(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %v: run rig clean %s", left, i.Name())
	}
	return err
}
