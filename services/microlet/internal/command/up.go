package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/up"
)

func newUp() *cobra.Command {
	return newAgent(&cobra.Command{
		Use:   "up [flags]",
		Short: "Run the node agent: start all services and keep them running",
		Long: "Run the node agent: start all services and keep them running. It takes the kubelet's command\nline as a " +
			"unit file or kubeadm gives it, and flags of its own.",
	}, func(ctx context.Context, cfg up.Config) error {
		service.TuneProcess(role.Up, cfg.Placement == up.Single)
		return up.Run(run.Signals(ctx), cfg)
	})
}

func newPrepare() *cobra.Command {
	return newAgent(&cobra.Command{
		Use:   "prepare [flags]",
		Short: "Make what the services need, for services that units or containers start",
		Long: "Make the runtime folder with the services' keys, configuration and credentials, and their state folders, and\n" +
			"end. Units or containers of their own then start the services with \"microlet <service>\", each with the user\n" +
			"and the capabilities that it has below \"microlet up\". It takes the flags of \"microlet up\".",
	}, func(ctx context.Context, cfg up.Config) error { return up.Prepare(run.Signals(ctx), cfg) })
}

// newAgent completes a command that takes the flags of the whole node agent.
func newAgent(cmd *cobra.Command, do func(context.Context, up.Config) error) *cobra.Command {
	cfg := up.DefaultConfig()
	flags := kubeletconfig.NewFlags()
	cmd.Args = service.NoArguments
	fs := cmd.Flags()
	flags.AddTo(fs)
	cfg.AddFlags(fs)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		wrong := service.ExplainFlag(cmd, err)
		if errors.Is(wrong, pflag.ErrHelp) {
			return wrong
		}
		_, more := load(&cfg, fs, flags)
		return errors.Join(wrong, more)
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.Version() != "" {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "microlet", telemetry.Version)
			return err
		}
		if err := service.KeepPrivate(); err != nil {
			return err
		}
		warnings, err := load(&cfg, fs, flags)
		if err != nil {
			return err
		}
		if _, err := telemetry.ProcessLogger(cfg.Service.Log, string(role.Up)); err != nil {
			return err
		}
		service.LogWarnings(warnings)
		return do(cmd.Context(), cfg)
	}
	return cmd
}

// load completes cfg with the kubelet's configuration. Its error joins all that is wrong with any of it.
func load(cfg *up.Config, fs *pflag.FlagSet, flags *kubeletconfig.Flags) ([]kubeletconfig.Warning, error) {
	kubelet, warnings, wrong := kubeletconfig.Inspect(fs, flags)
	if kubelet == nil {
		return nil, wrong
	}
	log := cfg.Service.Log
	err := cfg.Service.TakeKubelet(kubelet)
	if wrong != nil {
		cfg.Service.Log = log // what is wrong with it is reported
	}
	cfg.Kubelet = kubelet
	return warnings, errors.Join(wrong, err, cfg.Validate())
}
