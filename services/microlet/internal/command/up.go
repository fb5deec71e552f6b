package command

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/placement"
	"github.com/microlet/microlet/services/microlet/internal/up"
)

// upFlags are the flags of "microlet up": its own, its services' and the kubelet's.
type upFlags struct {
	cfg     up.Config
	kubelet *kubeletconfig.Flags
	fs      *pflag.FlagSet
	// ofKubelet are the names of the kubelet's flags.
	ofKubelet map[string]bool
}

func newUpFlags() *upFlags {
	kubelet := kubeletconfig.NewFlags()
	kubelet.CheckCredentials(clientcert.Credentials{})
	return &upFlags{cfg: up.DefaultConfig(), kubelet: kubelet, ofKubelet: map[string]bool{}}
}

// addTo gives the flags to a command. Beside a mistake in a flag, the command reports what else is wrong.
func (f *upFlags) addTo(cmd *cobra.Command) {
	f.fs = cmd.Flags()
	f.kubelet.AddTo(f.fs)
	f.fs.VisitAll(func(fl *pflag.Flag) { f.ofKubelet[fl.Name] = true })
	f.cfg.AddFlags(f.fs)
	f.groupUsage(cmd)
	_ = cmd.RegisterFlagCompletionFunc("placement", completePlacement) // it fails for a flag that there is not
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		wrong := service.ExplainFlag(cmd, err)
		if errors.Is(wrong, pflag.ErrHelp) {
			return wrong
		}
		_, more := f.load()
		return errors.Join(wrong, more)
	})
}

// completePlacement completes the names of placements. After a name of a service it completes nothing.
func completePlacement(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return placement.Names(), cobra.ShellCompDirectiveNoFileComp
}

func newUp() *cobra.Command {
	return newAgent(&cobra.Command{
		Use:   "up [flags]",
		Short: "Run the node agent: start all services and keep them running",
		Long: "Run the node agent: start all services and keep them running. It takes the kubelet's command\nline as a " +
			"unit file or kubeadm gives it, and flags of its own.",
	}, func(ctx context.Context, cfg up.Config) error {
		service.TuneProcess(cfg.InProcess()...)
		return up.Run(run.Signals(ctx), cfg)
	})
}

func newPrepare() *cobra.Command {
	return newAgent(&cobra.Command{
		Use:   "prepare [flags]",
		Short: "Make what the services need, for services that units or containers start",
		Long: "Make the runtime folder with the services' keys, configuration and credentials, and their state\n" +
			"folders, and end. Units or containers of their own then start the services with\n" +
			"\"microlet <service>\", each with the user and the capabilities that it has below \"microlet up\".\n" +
			"It takes the flags of \"microlet up\".",
	}, func(ctx context.Context, cfg up.Config) error { return up.Prepare(run.Signals(ctx), cfg) })
}

// newAgent completes a command that takes the flags of the whole node agent.
func newAgent(cmd *cobra.Command, do func(context.Context, up.Config) error) *cobra.Command {
	flags := newUpFlags()
	cmd.Args = service.NoArguments
	flags.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.kubelet.Version() != "" {
			return writeKubeletVersion(cmd.OutOrStdout(), flags.kubelet.Version())
		}
		if err := service.KeepPrivate(); err != nil {
			return err
		}
		warnings, err := flags.load()
		if err != nil {
			return err
		}
		cfg := flags.cfg
		if _, err := telemetry.ProcessLogger(cfg.Service.Log, string(role.Up)); err != nil {
			return err
		}
		service.LogWarnings(warnings)
		return do(cmd.Context(), cfg)
	}
	return cmd
}

// load completes the config with the kubelet's configuration. Its error joins all that is wrong with any of it.
func (f *upFlags) load() ([]kubeletconfig.Warning, error) {
	cfg := &f.cfg
	kubelet, warnings, wrong := kubeletconfig.Inspect(f.fs, f.kubelet)
	if kubelet == nil {
		return nil, wrong
	}
	log := cfg.Service.Log
	err := cfg.Service.TakeKubelet(kubelet)
	if wrong != nil {
		cfg.Service.Log = log // what is wrong with it is reported
	}
	cfg.Kubelet = kubelet
	return warnings, kubeletconfig.Once(errors.Join(wrong, err, cfg.Validate()))
}
