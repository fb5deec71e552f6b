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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/rig"
)

func newRun(out, progress io.Writer) *cobra.Command {
	var o rig.Options
	var demo bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Start an instance and stop it on Ctrl-C; a second Ctrl-C kills at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = progress
			return run(cmd.Context(), o, demo, out, progress)
		},
	}
	upFlags(cmd, &o)
	cmd.Flags().BoolVar(&demo, "demo", false, "create a Deployment of two replicas and wait until it runs")
	return cmd
}

func run(ctx context.Context, o rig.Options, demo bool, out, progress io.Writer) error {
	begin := time.Now()
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
		i, err := rig.Up(ctx, o)
		if err == nil && demo {
			err = runDemo(ctx, i, out, begin)
		}
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

// demoName is the demo's Deployment.
const demoName = "hello"

// runDemo shows that the node works: a Deployment, its pods and their
// addresses.
func runDemo(ctx context.Context, i *rig.Instance, out io.Writer, begin time.Time) error {
	if i.Agent() == rig.AgentNone {
		return errors.New("--demo needs an agent")
	}
	client, err := i.Client()
	if err != nil {
		return err
	}
	replicas := int32(2)
	labels := map[string]string{"app": demoName}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: demoName},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: demoName, Image: rig.BusyboxImage,
					Command: []string{"sh", "-c",
						"trap 'exit 0' TERM; while :; do echo hello from $(hostname); sleep 5 & wait; done"},
				}}},
			},
		},
	}
	if _, err := client.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the demo's deployment: %w", err)
	}
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	printed := map[string]bool{}
	for {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + demoName})
		if err != nil {
			return fmt.Errorf("watch the demo's pods: %w", err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" && !printed[p.Name] {
				printed[p.Name] = true
				_, _ = fmt.Fprintf(out, "pod %s is Running with address %s, %s after the command\n", p.Name,
					p.Status.PodIP, time.Since(begin).Round(100*time.Millisecond))
			}
		}
		if len(printed) >= int(replicas) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the demo's pods are not Running: %w: look at them with rig kubectl --name %s describe "+
				"pods, and at %s", ctx.Err(), i.Name(), i.Log(rig.AgentProgram))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
