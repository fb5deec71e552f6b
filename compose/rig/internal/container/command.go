package container

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig/internal/images"
)

// checkTimeout bounds a check: Docker counts one that takes longer as failed.
const checkTimeout = 5 * time.Second

// Main runs one command and returns the exit status.
func Main(args []string, out, progress io.Writer) int {
	root := &cobra.Command{
		Use:           "rig-node",
		Short:         "What the containers of compose.yaml run besides the programs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRun(progress), newPush(), newCheck(), newCheckNode(), newCheckDeployment())
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(progress)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(progress, "rig-node: error:", err)
		return 1
	}
	return 0
}

func newRun(progress io.Writer) *cobra.Command {
	n := Node{Out: progress}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make the node's network, certificates and configuration, hold its namespaces, and clear up at SIGTERM",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return n.Run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&n.Name, "node-name", "node", "name of the Node object")
	f.StringVar(&n.Secrets, "secrets", "/rig", "folder for the control plane's certificates and kubeconfig files")
	f.StringVar(&n.Agent, "agent", "/node", "folder for what the node agent is given")
	f.StringVar(&n.Runtime, "runtime", "/etc/containerd", "folder for containerd's configuration")
	f.StringVar(&n.RootDir, "root-dir", "/var/lib/kubelet", "the node agent's root folder, of which mounts are taken away")
	f.StringVar(&n.Pods, "cgroup-root", "/microlet-compose-pods", "cgroup for the pods")
	f.StringVar(&n.Services, "services-cgroup", "",
		"cgroup that Docker makes for the services' containers; a slice is left alone")
	f.StringVar(&n.CgroupDriver, "cgroup-driver", "cgroupfs", `who makes the pods' cgroups: "cgroupfs" or "systemd"`)
	return cmd
}

func newPush() *cobra.Command {
	return &cobra.Command{
		Use:   "push LAYOUT REGISTRY",
		Short: "Push the images of an OCI layout to a registry",
		Args:  cobra.ExactArgs(2),
		RunE:  func(cmd *cobra.Command, args []string) error { return images.Push(cmd.Context(), args[0], args[1]) },
	}
}

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check URL",
		Short: "Ask whether a program works: http(s)://…, unix://… of a container runtime, file://… that exists",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			return Check(ctx, args[0])
		},
	}
}

func newCheckNode() *cobra.Command {
	return &cobra.Command{
		Use:   "check-node KUBECONFIG NODE",
		Short: "Ask whether the cluster has what pods need, and the node is Ready",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			return CheckNode(ctx, args[0], args[1])
		},
	}
}

func newCheckDeployment() *cobra.Command {
	return &cobra.Command{
		Use:   "check-deployment KUBECONFIG NAMESPACE/NAME",
		Short: "Ask whether all pods of a Deployment are available",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			return CheckDeployment(ctx, args[0], args[1])
		},
	}
}
