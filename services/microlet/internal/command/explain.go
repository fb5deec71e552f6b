package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/explanation"
	"github.com/microlet/microlet/services/microlet/internal/podtemplates"
	podsyncservice "github.com/microlet/microlet/services/podsync"
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
		Use:   "explain POD|FILE",
		Short: "Say why a pod is not running, or what this node would refuse of a manifest",
		Long: `Say why a pod of this node is not running: its source, admission, refused fields, volumes, image pulls with the
time of the next try, sandbox, containers and probes. POD is its name, with -n its namespace, or its UID.
With a FILE, or "-" for the standard input, say what this node would refuse of the pods in it, also of those of
Deployments and other workloads. Nothing of the file is run. Without a running podsync, the pods are not compared
with what the node has. It exits with 1 if the node would refuse one. Only root may do this.`,
		Example: "  microlet explain web -n shop\n  microlet explain deployment.yaml",
		Args:    service.OneArgument(`the pod, the file of its manifest, or "-" for the standard input`),
	}
	addRuntimeDir(cmd, &o.service)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", o.namespace, "the pod's namespace")
	cmd.Flags().BoolVar(&o.static, "static", o.static, "judge the pods of a file as static pods")
	addOutput(cmd, &o.output, outputText)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(o.output, outputText); err != nil {
			return err
		}
		if isManifest(args[0]) {
			return o.explainFile(cmd, args[0])
		}
		return o.explainPod(cmd.Context(), cmd.OutOrStdout(), args[0])
	}
	return cmd
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
	if o.output == outputJSON {
		return encode(out, x)
	}
	return x.Write(out)
}

// checked is one pod of a file as it is printed in JSON.
type checked struct {
	Of            string   `json:"of"`
	Errors        []string `json:"errors"`
	RefusedFields []string `json:"refusedFields"`
	// Admission is null if podsync was not there to be asked, or if the manifest is invalid.
	Admission *admission `json:"admission"`
}

type admission struct {
	Admitted bool   `json:"admitted"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
}

func (c *checked) refused() bool {
	return len(c.Errors)+len(c.RefusedFields) > 0 || c.Admission != nil && !c.Admission.Admitted
}

func (o *explainOptions) explainFile(cmd *cobra.Command, name string) error {
	data, err := readManifest(cmd.InOrStdin(), name)
	if err != nil {
		return err
	}
	pods, others, err := podtemplates.Find(data)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case len(pods) == 0 && len(others) > 0:
		return fmt.Errorf("%s has no pod but %s: give a Pod, or a workload with a pod template", name,
			strings.Join(others, ", "))
	case len(pods) == 0:
		return fmt.Errorf("%s is empty: give a manifest of a Pod", name)
	}
	check, closed, offline := o.checker()
	defer closed()
	all := make([]checked, 0, len(pods))
	for _, p := range pods {
		answer, err := check(cmd.Context(), p.Manifest)
		if err != nil {
			return err
		}
		all = append(all, checkedOf(p.Of, answer))
	}
	if o.output == outputJSON {
		err = encode(cmd.OutOrStdout(), all)
	} else {
		err = writeChecked(cmd.OutOrStdout(), all, offline)
	}
	var refused []string
	for i := range all {
		if all[i].refused() {
			refused = append(refused, all[i].Of)
		}
	}
	if err == nil && len(refused) > 0 {
		err = fmt.Errorf("%s: this node would not run %s as it is: correct what is listed above", name,
			strings.Join(refused, ", "))
	}
	return err
}

// checker asks podsync or, if it is not there, judges without it and says why.
func (o *explainOptions) checker() (check func(context.Context, []byte) (*podsyncv1.CheckPodResponse, error),
	closed func(), offline error) {
	alone := func(_ context.Context, manifest []byte) (*podsyncv1.CheckPodResponse, error) {
		return podsyncservice.CheckManifest(manifest, "node", o.static), nil
	}
	p, err := dialPods(&o.service)
	if err != nil {
		return alone, func() {}, err
	}
	return func(ctx context.Context, manifest []byte) (*podsyncv1.CheckPodResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, podsTimeout)
		defer cancel()
		answer, err := p.explain.CheckPod(ctx, &podsyncv1.CheckPodRequest{Manifest: manifest, Static: o.static})
		if err != nil && status.Code(err) != codes.Canceled {
			err = explainPods(err, p.socket)
		}
		return answer, err
	}, func() { _ = p.close() }, nil
}

func checkedOf(of string, answer *podsyncv1.CheckPodResponse) checked {
	c := checked{Of: of, Errors: answer.GetErrors(), RefusedFields: answer.GetRefusedFields()}
	if a := answer.GetAdmission(); a != nil {
		c.Admission = &admission{
			Admitted: a.GetState() == podsyncv1.Admission_STATE_ADMITTED, Reason: a.GetReason(), Message: a.GetMessage(),
		}
	}
	return c
}

func writeChecked(w io.Writer, all []checked, offline error) error {
	var errs []error
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format, args...)
		errs = append(errs, err)
	}
	for i := range all {
		c := &all[i]
		if !c.refused() {
			say("%s: this node would run it\n", c.Of)
			continue
		}
		say("%s: refused\n", c.Of)
		for _, e := range c.Errors {
			say("  invalid: %s\n", e)
		}
		for _, f := range c.RefusedFields {
			say("  not supported: %s: remove it, or run the pod on another node\n", f)
		}
		if c.Admission != nil && !c.Admission.Admitted {
			say("  not admitted: %s: %s\n", c.Admission.Reason, c.Admission.Message)
		}
	}
	if offline != nil {
		say("The resources, ports, labels and taints of the node were not looked at: %v\n", offline)
	}
	return errors.Join(errs...)
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
