package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/explanation"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	service   service.Config
	namespace string
	output    string
	static    bool
}

func newExplain() *cobra.Command {
	o := explainOptions{service: service.DefaultConfig(), namespace: v1.NamespaceDefault, output: outputText}
	cmd := &cobra.Command{
		Use:   "explain POD|FILE...",
		Short: "Say why a pod is not running, or what this node would refuse of a manifest",
		Long: `Say why a pod of this node is not running: its source, admission, refused fields, volumes, image pulls with the
time of the next try, sandbox, containers and probes. POD is its name, with -n its namespace, or its UID.
With FILEs, or "-" for the standard input, say what this node would refuse of the pods in them, also of those of
Deployments and other workloads. Nothing of a file is run. Of more than 20 pods it lists those that are refused, and
counts them by field and node. Without a running podsync, the pods are not compared with what the node has. It exits
with 1 if the node would refuse one. Only root may do this.`,
		Example: "  microlet explain web -n shop\n  microlet explain deployment.yaml\n" +
			"  kubectl get pods -A -o yaml | microlet explain -",
		Args: podOrFiles,
	}
	addRuntimeDir(cmd, &o.service)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", o.namespace, "the pod's namespace")
	cmd.Flags().BoolVar(&o.static, "static", o.static, "judge the pods of a file as static pods")
	addOutput(cmd, &o.output, outputText)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(o.output, outputText); err != nil {
			return err
		}
		name, _ := podName(args)
		if name == "" {
			return o.explainFiles(cmd, args)
		}
		return o.explainPod(cmd.Context(), cmd.OutOrStdout(), name)
	}
	return cmd
}

// kindsOfPod are kubectl's words before the name of a pod.
var kindsOfPod = []string{"pod", "pods", "po"}

// podName is the pod that the arguments name, as "web", "shop/web", "pod/web" or "pod web", and what follows it. It is
// empty if the first is a file.
func podName(args []string) (name string, rest []string) {
	if len(args) > 1 && slices.Contains(kindsOfPod, args[0]) && !isManifest(args[0]) {
		return args[1], args[2:]
	}
	if isManifest(args[0]) {
		return "", args[1:]
	}
	if kind, name, ok := strings.Cut(args[0], "/"); ok && slices.Contains(kindsOfPod, kind) {
		return name, args[1:]
	}
	return args[0], args[1:]
}

// podOrFiles accepts one pod, or any number of files.
func podOrFiles(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New(`name the pod, the file of its manifest, or "-" for the standard input`)
	}
	name, rest := podName(args)
	if name != "" && len(rest) > 0 {
		return fmt.Errorf("%q is one too many: name one pod, or files alone", rest[0])
	}
	for _, a := range rest {
		if !isManifest(a) {
			return fmt.Errorf("%q is no file: name one pod, or files alone", a)
		}
	}
	return nil
}

// isManifest distinguishes a file from the name of a pod.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	for _, prefix := range []string{"/", "./", "../"} {
		if strings.HasPrefix(name, prefix) {
			return true // namespace/name never begins so
		}
	}
	info, err := os.Stat(name)
	return name == "-" || err == nil && !info.IsDir()
}

func (o *explainOptions) explainPod(ctx context.Context, out io.Writer, name string) error {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		o.namespace, name = namespace, rest
	}
	p, err := dialPods(&o.service)
	if err != nil {
		return err
	}
	defer func() { _ = p.close() }() // what it was for has been answered
	answer, err := askPodsync(ctx, p,
		&podsyncv1.ExplainPodRequest{Name: name, Namespace: o.namespace}, p.explain.ExplainPod)
	if err != nil {
		return err
	}
	x, err := explanation.Of(answer.GetPod())
	if err != nil {
		return err
	}
	if o.output != outputText {
		return encodeAs(out, o.output, x)
	}
	return x.Write(out)
}
