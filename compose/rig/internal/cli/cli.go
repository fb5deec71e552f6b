package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/machine"
)

// Main runs one command and returns the exit status.
func Main(args []string, out, progress io.Writer) int {
	// A shell that became root without a login lacks the folders of iptables
	// and mount, which the rig and the programs that it starts call.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin"); err != nil {
		_, _ = fmt.Fprintln(progress, "rig: error:", err)
		return 1
	}
	root := newRoot(out, progress)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(progress)
	err := root.ExecuteContext(context.Background())
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode() // kubectl has said why
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		_, _ = fmt.Fprintln(progress, "rig: error:", err)
		return 1
	}
	return 0
}

func newRoot(out, progress io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "rig",
		Short: "A real Kubernetes control plane, runtime and registry on this machine, for one node",
		Long: `rig builds, starts and stops a real etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, containerd with runc and CNI, and an image registry. The node
agent is a choice: microlet, the real kubelet, or none. Every instance has its
own folder, ports, subnets, bridge and cgroup; several run side by side.

What it builds is kept in $MICROLET_CACHE (default: microlet in the user's
cache folder). It needs root, and sets net.ipv4.ip_forward=1.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newBuild(progress), newUp(out, progress), newRun(out, progress), newDown(progress),
		newStatus(out), newClean(out, progress), newEnv(out), newKubectl(), newExec(), newConformance(out, progress),
		newImages(out, progress),
	)
	return root
}

// interruptible returns a context that ends with the first SIGINT or SIGTERM.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "default", "the instance's name")
}

// nameOf takes the name from the flag or from the only argument.
func nameOf(cmd *cobra.Command, flag string, args []string) (string, error) {
	if len(args) == 0 {
		return flag, nil
	}
	if cmd.Flags().Changed("name") && args[0] != flag {
		return "", fmt.Errorf("two names given: --name %s and %s: give one", flag, args[0])
	}
	return args[0], nil
}

func newBuild(progress io.Writer) *cobra.Command {
	var with []string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build all programs and images that the cache lacks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			begin := time.Now()
			if err := rig.Build(ctx, rig.Options{Agent: rig.AgentNone, With: with, Out: progress}); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(progress, "rig: everything is built (%s)\n",
				time.Since(begin).Round(100*time.Millisecond))
			return nil
		},
	}
	withFlag(cmd, &with)
	return cmd
}

func withFlag(cmd *cobra.Command, with *[]string) {
	cmd.Flags().StringSliceVar(with, "with", nil,
		"programs and images that are not always needed: kubelet, conformance, node-conformance, prometheus, "+
			"metrics-server, csi, traces, machine, compose")
}

// upFlags are the options that up and run share.
func upFlags(cmd *cobra.Command, o *rig.Options) {
	nameFlag(cmd, &o.Name)
	withFlag(cmd, &o.With)
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "dir", "", "the instance's folder (default /var/lib/microlet-rig/<name>)")
	flags.StringVar((*string)(&o.Agent), "agent", string(rig.AgentMicrolet),
		"the node agent: microlet, kubelet or none")
	flags.StringVar(&o.Microlet, "microlet", "", "the microlet executable (default bin/microlet of the repository)")
	flags.StringArrayVar(&o.AgentArgs, "agent-arg", nil,
		"an argument to add to the agent's command line; may be repeated")
	flags.StringArrayVar(&o.AgentEnv, "agent-env", nil, "NAME=value to add to the agent's environment; may be repeated")
	flags.DurationVar(&o.AgentWatchdog, "agent-watchdog", 10*time.Second,
		"start an agent again whose watchdog messages stop for this long; below 0: never")
	flags.BoolVar(&o.Machine, "machine", false, "give the node a machine of its own, with systemd and cgroup v2; "+
		"without KVM its kernel is built once, for some 20 minutes")
	flags.IntVar(&o.MachineMemory, "machine-memory", 3072, "that machine's memory in MiB")
	flags.StringVar(&o.CgroupDriver, "cgroup-driver", "",
		"cgroupfs or systemd (default: systemd on a machine of its own, else cgroupfs)")
	flags.IntVar(&o.MaxPods, "max-pods", 250, "the node's pods at most")
	flags.IntVar(&o.NodeDisk, "node-disk", 0,
		"give the agent's root directory a filesystem of its own, in MiB (default 0: none)")
	flags.IntVar(&o.ImageDisk, "image-disk", 0, "give containerd a filesystem of its own, in MiB (default 0: none)")
	flags.BoolVar(&o.Keep, "keep", false, "keep an instance that did not come up, to look at it")
}

func newUp(out, progress io.Writer) *cobra.Command {
	var o rig.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start an instance, which goes on when this command has ended",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			o.Out = progress
			i, err := rig.Up(ctx, o)
			if err != nil {
				return err
			}
			printHints(out, i)
			_, _ = fmt.Fprintf(out, "\nStop it:  %s down --name %s\n", os.Args[0], i.Name())
			return nil
		},
	}
	upFlags(cmd, &o)
	return cmd
}

func printHints(out io.Writer, i *rig.Instance) {
	if i.Standalone() {
		_, _ = fmt.Fprintf(out, "\nTry next:\n  %[1]s pods --runtime-dir=%[2]s\n  %[1]s status --runtime-dir=%[2]s\n"+
			"Logs of microlet:  %[3]s\n", i.Microlet(), i.RuntimeDir(), i.Log(rig.AgentProgram))
		return
	}
	_, _ = fmt.Fprintf(out, "\nTry next:\n  export KUBECONFIG=%s\n  %s get nodes,pods -A\n", i.Kubeconfig(),
		i.Kubectl())
	_, _ = fmt.Fprintf(out, "  %s\n", createHint(i.Kubectl()))
	if i.OnMachine() {
		_, _ = fmt.Fprintf(out, "The node is a machine of its own:\n  %s exec --name %s -- systemctl status\n",
			os.Args[0], i.Name())
		if i.Agent() != rig.AgentNone {
			_, _ = fmt.Fprintf(out, "  %s exec --name %s -- journalctl -u %s -e\n", os.Args[0], i.Name(), i.Agent())
		}
		return
	}
	switch i.Agent() {
	case rig.AgentMicrolet:
		_, _ = fmt.Fprintf(out, "  %s status --runtime-dir=%s\n", i.Microlet(), i.RuntimeDir())
		_, _ = fmt.Fprintf(out, "Kill any of the node's processes, and see that no container notices:\n  %s\n",
			killHint("podsync", i.RuntimeDir()))
		_, _ = fmt.Fprintf(out, "Logs of microlet:  %s\n", i.Log(rig.AgentProgram))
	case rig.AgentKubelet:
		_, _ = fmt.Fprintf(out, "Log of the kubelet:  %s\n", i.Log(rig.AgentProgram))
	case rig.AgentNone:
		_, _ = fmt.Fprintf(out, "CRI socket:  %s\nNode's kubeconfig and configuration:  %s %s\n", i.RuntimeSocket(),
			i.NodeKubeconfig(), i.KubeletConfig())
	}
}

// createHint creates a Deployment beside the demo's.
func createHint(kubectl string) string {
	return fmt.Sprintf("%s create deployment sleeper --image=%s --replicas=2 -- sleep infinity", kubectl,
		rig.BusyboxImage)
}

// killHint kills the process of one service of this instance, and of no other. The brackets keep the pattern from
// meeting its own command line, such as sudo's.
func killHint(service, runtimeDir string) string {
	return fmt.Sprintf("pkill -KILL -f '[%s]%s --runtime-dir=%s '", service[:1], service[1:],
		regexp.QuoteMeta(runtimeDir))
}

func newDown(progress io.Writer) *cobra.Command {
	var name string
	var fast bool
	cmd := &cobra.Command{
		Use:   "down [NAME]",
		Short: "Stop an instance and take away all that it made",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nameOf(cmd, name, args)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return down(ctx, name, fast, progress)
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().BoolVar(&fast, "fast", false, "kill at once")
	return cmd
}

func down(ctx context.Context, name string, fast bool, progress io.Writer) error {
	i, err := rig.Open(name)
	if err != nil {
		return err
	}
	i.SetOutput(progress)
	var opts []rig.DownOption
	if fast {
		opts = append(opts, rig.Fast)
	}
	if err := i.Down(ctx, opts...); err != nil {
		return err
	}
	left, err := i.Leftovers(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind:\n  %s\nrun rig clean %s", strings.Join(left, "\n  "), name)
	}
	return nil
}

func newStatus(out io.Writer) *cobra.Command {
	var name, format string
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show the programs of one instance, or of all",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			picked, err := nameOf(cmd, name, args)
			if err != nil {
				return err
			}
			names := []string{picked}
			if len(args) == 0 && !cmd.Flags().Changed("name") {
				if names, err = rig.List(); err != nil {
					return err
				}
			}
			return status(cmd.Context(), names, format, out)
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	return cmd
}

func status(ctx context.Context, names []string, format string, out io.Writer) error {
	type row struct {
		Instance string `json:"instance"`
		rig.Status
	}
	rows := []row{}
	for _, name := range names {
		i, err := rig.Open(name)
		if err != nil {
			return err
		}
		for _, s := range i.Status(ctx) {
			rows = append(rows, row{name, s})
		}
	}
	switch format {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	case "table":
		if len(rows) == 0 {
			_, err := fmt.Fprintln(out, "no instances")
			return err
		}
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "INSTANCE\tPROGRAM\tPID\tSTATE")
		for _, r := range rows {
			state := "running"
			if !r.Running {
				state = "gone"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", r.Instance, r.Program, r.PID, state)
		}
		return w.Flush()
	}
	return fmt.Errorf("output format %q: use table or json", format)
}

func newClean(out, progress io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "clean [NAME...]",
		Short: "Take away instances, running or crashed: the named ones, or ALL of this machine",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			cleaned, err := rig.Clean(ctx, progress, args...)
			if len(cleaned) > 0 {
				slices.Sort(cleaned)
				_, _ = fmt.Fprintf(out, "cleaned: %s\n", strings.Join(cleaned, ", "))
			} else if err == nil {
				_, _ = fmt.Fprintln(out, "nothing to clean")
			}
			return err
		},
	}
}

func newEnv(out io.Writer) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "env [NAME]",
		Short: "Print an instance's addresses and files for a shell: eval $(rig env)",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nameOf(cmd, name, args)
			if err != nil {
				return err
			}
			i, err := rig.Open(name)
			if err != nil {
				return err
			}
			for _, kv := range [][2]string{
				{"KUBECONFIG", i.Kubeconfig()}, {"RIG_KUBECTL", i.Kubectl()}, {"RIG_CTR", i.Binary("ctr")},
				{"RIG_DIR", i.Dir()}, {"RIG_NODE_NAME", i.NodeName()}, {"RIG_NODE_IP", i.NodeIP()},
				{"RIG_NODE_KUBECONFIG", i.NodeKubeconfig()}, {"RIG_KUBELET_CONFIG", i.KubeletConfig()},
				{"RIG_ROOT_DIR", i.RootDir()}, {"RIG_POD_LOGS_DIR", i.PodLogsDir()}, {"RIG_RUNTIME_DIR", i.RuntimeDir()},
				{"CONTAINER_RUNTIME_ENDPOINT", i.RuntimeEndpoint()},
				{"CONTAINERD_ADDRESS", i.RuntimeSocket()}, {"CONTAINERD_NAMESPACE", "k8s.io"},
				{"RIG_CGROUP_ROOT", i.CgroupRoot()}, {"RIG_REGISTRY", i.Registry()}, {"RIG_AGENT_LOG", i.Log(rig.AgentProgram)},
				{"RIG_SPANS", i.Spans()},
			} {
				if _, err := fmt.Fprintf(out, "export %s='%s'\n", kv[0], kv[1]); err != nil {
					return err
				}
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newExec() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec [--name NAME] -- COMMAND [ARGS...]",
		Short: "Run a command in the node's own machine, as root",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			i, err := rig.Open(name)
			if err != nil {
				return err
			}
			m, err := i.Machine()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			r, err := m.Run(ctx, machine.Command{Args: args, Input: os.Stdin, Output: os.Stdout})
			_, _ = os.Stderr.Write(r.Stderr)
			if err != nil {
				return err
			}
			if r.Code != 0 {
				return exitCode(r.Code)
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

// exitCode is the exit status of a command that has said itself why.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("the command has ended with %d", int(c)) }

func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [--name NAME] ARGS...",
		Short:              "Run the instance's kubectl as its administrator",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			name, args := kubectlArgs(args)
			i, err := rig.Open(name)
			if err != nil {
				return err
			}
			kubectl := exec.CommandContext(cmd.Context(), i.Kubectl(), args...)
			kubectl.Env = append(os.Environ(), "KUBECONFIG="+i.Kubeconfig())
			kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = os.Stdin, os.Stdout, os.Stderr
			return kubectl.Run()
		},
	}
}

// kubectlArgs takes the instance's name, and a "--" that only ends rig's own flags, from before kubectl's arguments.
func kubectlArgs(args []string) (name string, rest []string) {
	name = "default"
	if len(args) > 0 {
		if value, ok := strings.CutPrefix(args[0], "--name="); ok {
			name, args = value, args[1:]
		} else if args[0] == "--name" && len(args) > 1 {
			name, args = args[1], args[2:]
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	return name, args
}
