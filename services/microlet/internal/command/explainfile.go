package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/microlet/internal/explanation"
	"github.com/microlet/microlet/services/microlet/internal/podtemplates"
	podsyncservice "github.com/microlet/microlet/services/podsync"
)

// maxListedPods is how many pods of files are listed one by one. Of more, those are that are refused, and a summary.
const maxListedPods = 20

// maxCluster bounds a file of pods, which may be those of a cluster.
const maxCluster = 256 << 20

// checked is one pod of a file as it is printed in JSON.
type checked struct {
	Of string `json:"of"`
	// Node is the one that runs the pod; empty for a template.
	Node          string   `json:"node,omitempty"`
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

// explainFiles judges the pods of all files together.
func (o *explainOptions) explainFiles(cmd *cobra.Command, names []string) error {
	var (
		pods   []podtemplates.Pod
		others []string
	)
	for _, name := range names {
		data, err := readFile(cmd.InOrStdin(), name, maxCluster)
		if err != nil {
			return err
		}
		found, more, err := podtemplates.Find(data)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case len(found)+len(more) == 0:
			return fmt.Errorf("%s is empty: give a manifest of a Pod", name)
		}
		pods, others = append(pods, found...), append(others, more...)
	}
	if len(pods) == 0 {
		return fmt.Errorf("%s has no pod but %s: give a Pod, or a workload with a pod template", strings.Join(names, ", "),
			explanation.Few(others))
	}
	check, closed, offline := o.checker()
	defer closed()
	all := make([]checked, 0, len(pods))
	for _, p := range pods {
		answer, err := check(cmd.Context(), p.Manifest)
		if err != nil {
			return err
		}
		c := checkedOf(p.Of, answer)
		c.Node = p.Node
		all = append(all, c)
	}
	var err error
	if o.output != outputText {
		err = encodeAs(cmd.OutOrStdout(), o.output, all)
	} else {
		err = writeChecked(cmd.OutOrStdout(), all, others, offline)
	}
	return errors.Join(err, refusal(strings.Join(names, ", "), all))
}

// refusal is the error of pods that are refused; nil if none is.
func refusal(files string, all []checked) error {
	var refused []string
	for i := range all {
		if all[i].refused() {
			refused = append(refused, all[i].Of)
		}
	}
	switch {
	case len(refused) == 0:
		return nil
	case len(all) > maxListedPods:
		return fmt.Errorf("%s: this node would not run %d of %d pods as they are: correct what is listed above", files,
			len(refused), len(all))
	}
	return fmt.Errorf("%s: this node would not run %s as it is: correct what is listed above", files,
		strings.Join(refused, ", "))
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

// faults are what is wrong with the pod, each in a line with what to do.
func (c *checked) faults() (lines []string) {
	for _, e := range c.Errors {
		lines = append(lines, "invalid: "+e)
	}
	for _, f := range c.RefusedFields {
		lines = append(lines, "not supported: "+f+": "+explanation.FieldRemedy(f))
	}
	if c.Admission != nil && !c.Admission.Admitted {
		lines = append(lines, fmt.Sprintf("not admitted: %s: %s", c.Admission.Reason, c.Admission.Message))
	}
	return lines
}

func writeChecked(w io.Writer, all []checked, others []string, offline error) error {
	var b strings.Builder
	for i := range all {
		switch c := &all[i]; {
		case c.refused():
			fmt.Fprintf(&b, "%s: refused\n", c.Of)
			for _, line := range c.faults() {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		case len(all) <= maxListedPods:
			fmt.Fprintf(&b, "%s: this node would run it\n", c.Of)
		}
	}
	if len(all) > maxListedPods {
		summarize(&b, all)
	}
	if len(others) == 1 {
		fmt.Fprintf(&b, "1 other object has no pod: %s\n", others[0])
	} else if len(others) > 1 {
		fmt.Fprintf(&b, "%d other objects have no pod: %s\n", len(others), explanation.Few(others))
	}
	if offline != nil {
		fmt.Fprintf(&b, "The resources, ports, labels and taints of the node were not looked at: %v\n", offline)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// summarize counts the pods by what they are refused for, and by the node that runs them.
func summarize(b *strings.Builder, all []checked) {
	refused, reasons, nodes := 0, map[string]int{}, map[string]*[2]int{}
	for i := range all {
		c := &all[i]
		node := cmp.Or(c.Node, "-")
		if nodes[node] == nil {
			nodes[node] = &[2]int{}
		}
		nodes[node][0]++
		if !c.refused() {
			continue
		}
		refused++
		nodes[node][1]++
		for _, reason := range c.reasons() {
			reasons[reason]++
		}
	}
	fmt.Fprintf(b, "\n%d of %d pods would run", len(all)-refused, len(all))
	if refused == 0 {
		b.WriteString(".\n")
		return
	}
	b.WriteString("; the others are refused:\n\n")
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "REFUSED\tBECAUSE OF")
	byCount := func(x, y string) int { return cmp.Or(cmp.Compare(reasons[y], reasons[x]), cmp.Compare(x, y)) }
	for _, reason := range slices.SortedFunc(maps.Keys(reasons), byCount) {
		fmt.Fprintf(t, "%d\t%s\n", reasons[reason], reason)
	}
	_ = t.Flush() // a strings.Builder takes everything
	fmt.Fprintln(t, "\nREFUSED\tPODS\tNODE")
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		if n := nodes[node]; n[1] > 0 {
			fmt.Fprintf(t, "%d\t%d\t%s\n", n[1], n[0], node)
		}
	}
	_ = t.Flush()
}

// reasons are what the pod is refused for, each once: fields without the indices of lists.
func (c *checked) reasons() []string {
	var all []string
	for _, e := range c.Errors {
		field, _, _ := strings.Cut(e, ":")
		all = append(all, "invalid "+explanation.FieldShape(field))
	}
	for _, f := range c.RefusedFields {
		all = append(all, explanation.FieldShape(f))
	}
	if c.Admission != nil && !c.Admission.Admitted {
		all = append(all, c.Admission.Reason)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// judgeStatic is what is wrong with the manifest of a static pod, as far as it can be said without podsync.
func judgeStatic(name string, manifest []byte) error {
	c := checkedOf(name, podsyncservice.CheckManifest(manifest, "node", true))
	var all []error
	for _, line := range c.faults() {
		all = append(all, fmt.Errorf("%s: %s", name, line))
	}
	return errors.Join(all...)
}
