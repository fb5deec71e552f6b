package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	goruntime "runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// Command returns the command line of the service: "<service> [flags]", the same in the one binary and
// in the service's own.
//
// A service that needs the kubelet's configuration also takes all of the kubelet's flags, or --resolved-config with
// the file that "microlet up" wrote. Run's context ends with SIGTERM.
func (d Definition) Command() *cobra.Command {
	cfg := DefaultConfig()
	flags := kubeletconfig.NewFlags()
	flags.CheckCredentials(d.Credentials)
	resolved := ""
	cmd := &cobra.Command{
		Use:           string(d.Role) + " [flags]",
		Short:         d.Short,
		Args:          NoArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(ExplainFlag)
	fs := cmd.Flags()
	if d.NeedsKubelet {
		flags.AddTo(fs)
		fs.StringVar(&resolved, "resolved-config", "",
			`file of the kubelet's resolved configuration, as "microlet up" writes it; the kubelet's own flags are then not read`)
	}
	cfg.AddFlags(fs)
	if d.Bind != nil {
		d.Bind(fs)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := KeepPrivate(); err != nil {
			return err
		}
		TuneProcess(d.Role)
		LimitHeap(d)
		var kubelet *kubeletconfig.Config
		if d.NeedsKubelet {
			if flags.Version() != "" {
				fmt.Fprintln(cmd.OutOrStdout(), "microlet", telemetry.Version)
				return nil
			}
			var err error
			if kubelet, err = d.takeKubelet(&cfg, fs, flags, resolved); err != nil {
				return err
			}
		}
		if err := cfg.Validate(); err != nil {
			return err
		}
		return Afterwards(cmd.Context(), func(ctx context.Context) (err error) {
			release, err := cfg.claimReplica(d.Role)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, release()) }()
			return d.Run(run.Signals(ctx), cfg, kubelet)
		})
	}
	return cmd
}

// takeKubelet reads the kubelet's configuration, and takes over what all services have of it.
func (d Definition) takeKubelet(cfg *Config, fs *pflag.FlagSet, flags *kubeletconfig.Flags, resolved string) (
	*kubeletconfig.Config, error) {
	kubelet, warnings, err := LoadKubelet(fs, flags, resolved)
	if err != nil {
		return nil, err
	}
	if err := cfg.TakeKubelet(kubelet); err != nil {
		return nil, err
	}
	if kubelet.Kubelet.EnableContentionProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	if _, err := telemetry.ProcessLogger(cfg.Log, string(d.Role)); err != nil {
		return nil, err
	}
	LogWarnings(warnings)
	return kubelet, nil
}

// laterKey is the context's key of what a command leaves to be run.
type laterKey struct{}

// Afterwards leaves f to Execute, which runs it when cobra has returned: the command line with its hundreds of flags
// need not stay in memory as long as the service runs. Without Execute it runs f itself.
func Afterwards(ctx context.Context, f func(ctx context.Context) error) error {
	later, ok := ctx.Value(laterKey{}).(*func(context.Context) error)
	if !ok {
		return f(ctx)
	}
	*later = f
	return nil
}

// execute executes a command line, and then what it has left.
func execute(cmd *cobra.Command, args []string) error {
	cmd.SetArgs(args)
	ctx := WithArguments(context.Background(), args)
	var later func(context.Context) error
	if err := cmd.ExecuteContext(context.WithValue(ctx, laterKey{}, &later)); err != nil || later == nil {
		return err
	}
	return later(ctx)
}

// KubeletFields are the fields of the kubelet's configuration that every service reads that gets one.
func KubeletFields() []string {
	return []string{"enableContentionProfiling", "logging", "tracing", "node.hostnameOverride"}
}

// LoadKubelet reads the configuration that "microlet up" resolved, or resolves the flags itself.
func LoadKubelet(fs *pflag.FlagSet, flags *kubeletconfig.Flags,
	resolved string) (*kubeletconfig.Config, []kubeletconfig.Warning, error) {
	if resolved == "" {
		return kubeletconfig.Load(fs, flags)
	}
	k, err := kubeletconfig.ReadResolved(resolved)
	return k, nil, err // the process that resolved it has logged the warnings
}

// LogWarnings logs what the kubelet's configuration asks for and does not get.
func LogWarnings(warnings []kubeletconfig.Warning) {
	for _, w := range warnings {
		slog.Warn("kubelet configuration", "warning", w.Message, "fields", w.Fields)
	}
}

// TakeKubelet takes from the kubelet's configuration what every service needs of it: how to log
// and to trace, and the node's name unless it is set.
func (c *Config) TakeKubelet(k *kubeletconfig.Config) error {
	c.Log.SetKubelet(&k.Kubelet.Logging)
	c.Tracing = k.Kubelet.Tracing
	if c.NodeName != "" {
		return nil
	}
	name, err := k.NodeName()
	if err != nil {
		return err
	}
	c.NodeName = name
	return nil
}

// argumentsKey is the context's key of the command line's arguments.
type argumentsKey struct{}

// WithArguments returns a context by which a command that cobra executes knows all its arguments. Without them
// ExplainFlag explains the first mistake alone, since cobra stops there.
func WithArguments(ctx context.Context, args []string) context.Context {
	return context.WithValue(ctx, argumentsKey{}, args)
}

// ExplainFlag explains what is wrong with any flag, and what would be right. It is a cobra.Command's FlagErrorFunc.
func ExplainFlag(cmd *cobra.Command, err error) error {
	args, ok := cmd.Context().Value(argumentsKey{}).([]string)
	if !ok {
		return kubeletconfig.Explain(cmd.Flags(), err)
	}
	if _, rest, unknown := cmd.Root().Find(args); unknown == nil {
		args = rest
	}
	return kubeletconfig.ExplainAll(cmd.Flags(), args, err)
}

// ArgumentsAfter are the arguments after the name of the command that runs.
func ArgumentsAfter(cmd *cobra.Command) []string {
	args, _ := cmd.Context().Value(argumentsKey{}).([]string)
	if found, rest, err := cmd.Root().Find(args); err == nil && found == cmd {
		return rest
	}
	return args
}

// NoArguments refuses arguments that are no flags.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q is no flag, and %s takes nothing else: write --flag=value, or remove it", args[0],
		cmd.CommandPath())
}

// OneArgument refuses anything but one argument, which is what.
func OneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("name %s: %s", what, cmd.UseLine())
		case 1:
			return nil
		}
		return fmt.Errorf("%q is one too many: name %s and nothing else", args[1], what)
	}
}

// Main runs the process's command line to its end and exits: 0 when it ended well, also by SIGTERM.
func Main(cmd *cobra.Command) { Execute(cmd, os.Args[1:]) }

// Execute is Main with these arguments in place of the process's.
func Execute(cmd *cobra.Command, args []string) {
	name := cmd.CommandPath()
	err := execute(cmd, args)
	if w := telemetry.ProcessWriter(); w != nil {
		w.Flush(flushTimeout) // what was logged before a start failed
	}
	code := 0
	var exit ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
	case err != nil:
		code = 1
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(code)
}

// ExitError is an error with an exit code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap gives the error itself.
func (e ExitError) Unwrap() error { return e.Err }
