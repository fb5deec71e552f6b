package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/up"
)

func newUp() *cobra.Command {
	cfg := up.DefaultConfig()
	flags := kubeletconfig.NewFlags()
	cmd := &cobra.Command{
		Use:   "up [flags]",
		Short: "Run the node agent: start all services and keep them running",
		Long:  "Run the node agent: start all services and keep them running. It takes the kubelet's command\nline as a unit file or kubeadm gives it, and flags of its own.",
		Args:  cobra.NoArgs,
	}
	fs := cmd.Flags()
	flags.AddTo(fs)
	cfg.AddFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.Version() != "" {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "microlet", telemetry.Version)
			return err
		}
		if err := service.KeepPrivate(); err != nil {
			return err
		}
		kubelet, warnings, err := kubeletconfig.Load(fs, flags)
		if err != nil {
			return err
		}
		if err := cfg.Service.TakeKubelet(kubelet); err != nil {
			return err
		}
		cfg.Kubelet = kubelet
		if err := cfg.Validate(); err != nil {
			return err
		}
		if _, err := telemetry.ProcessLogger(cfg.Service.Log, string(role.Up)); err != nil {
			return err
		}
		service.LogWarnings(warnings)
		service.TuneProcess(role.Up, cfg.Placement == up.Single)
		return up.Run(run.Signals(cmd.Context()), cfg)
	}
	return cmd
}
