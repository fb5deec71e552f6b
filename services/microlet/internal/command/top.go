package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/top"
)

// topTimeout bounds all questions of one look.
const topTimeout = 3 * time.Second

func newTop() *cobra.Command {
	cfg := service.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show services, pods, rates and waiting calls on a terminal, as they change",
		Long: "Show services, pods, rates and waiting calls on a terminal, as they change. It asks every 2 s. CPU is in\n" +
			"percent of one core. q ends it, and the arrows move through the pods. Only root may ask.",
		Args: service.NoArguments,
	}
	addRuntimeDir(cmd, &cfg)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		in, isIn := cmd.InOrStdin().(*os.File)
		out, isOut := cmd.OutOrStdout().(*os.File)
		if !isIn || !isOut || !isTerminal(in) || !isTerminal(out) {
			return errors.New("top needs a terminal: without one, use microlet status --watch")
		}
		if _, err := askStatus(cmd.Context(), &cfg); err != nil {
			return err
		}
		return top.Run(run.Signals(cmd.Context()), in, out, func(ctx context.Context) top.Node { return askNode(ctx, &cfg) })
	}
	return cmd
}

// askNode asks for all that top shows. What has no answer is a fault of the node.
func askNode(ctx context.Context, cfg *service.Config) top.Node {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	var (
		wg                 sync.WaitGroup
		status             Status
		pods               PodList
		noStatus, noPods   error
		samples, noSamples = map[string]top.Sample{}, []error(nil)
	)
	wg.Go(func() { status, noStatus = askStatus(ctx, cfg) })
	wg.Go(func() { pods, noPods = listPods(ctx, cfg, "") })
	wg.Go(func() { samples, noSamples = askSamples(ctx, cfg) })
	wg.Wait()
	n := top.Node{Time: time.Now(), Version: status.Version, Placement: status.Placement, Samples: samples}
	for _, err := range append([]error{noStatus, noPods}, noSamples...) {
		if err != nil {
			n.Faults = append(n.Faults, err.Error())
		}
	}
	seen := map[int32]bool{}
	for _, p := range status.Processes {
		row := top.Process{
			Name: p.Service, State: p.State, PID: p.PID, Uptime: time.Duration(p.UptimeSeconds * float64(time.Second)),
			Restarts: p.Restarts, Memory: p.MemoryBytes, Heartbeat: -1, Shared: seen[p.PID],
		}
		seen[p.PID] = p.PID != 0
		if p.HeartbeatAgeSeconds != nil {
			row.Heartbeat = time.Duration(*p.HeartbeatAgeSeconds * float64(time.Second))
		}
		n.Processes = append(n.Processes, row)
	}
	for _, p := range pods.Pods {
		n.Pods = append(n.Pods, top.Pod{
			Namespace: p.Namespace, Name: p.Name, Status: p.Status, Ready: p.Ready, Containers: p.Containers,
			Restarts: p.Restarts,
		})
	}
	return n
}

// askSamples asks all processes for their metrics at once.
func askSamples(ctx context.Context, cfg *service.Config) (map[string]top.Sample, []error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		samples = map[string]top.Sample{}
		faults  []error
	)
	for _, r := range role.All() {
		replicas, _ := service.Replicas(cfg.MetricsSocket(r)) // of too many, the first ones serve
		for _, replica := range replicas {
			name, socket := service.ProcessName(r, replica), service.ReplicaSocket(cfg.MetricsSocket(r), replica)
			wg.Go(func() {
				text, err := askHTTP(socket, "/metrics")(ctx)
				var sample top.Sample
				if err == nil {
					sample, err = top.ParseSample(bytes.NewReader(text))
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					faults = append(faults, fmt.Errorf("%s shows no metrics: it does not run, or does not answer", name))
					return
				}
				samples[name] = sample
			})
		}
	}
	wg.Wait()
	return samples, faults
}
