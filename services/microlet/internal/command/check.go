package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/nodecheck"
	podsyncservice "github.com/microlet/microlet/services/podsync"
)

func newCheck() *cobra.Command { return newCheckOf(nil) }

// newCheckOf is check with the command line of a kubelet, or else with what it is given.
func newCheckOf(kubelet *nodecheck.Kubelet) *cobra.Command {
	c := checkOptions{flags: newUpFlags(), kubelet: kubelet, output: outputText}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Check the configuration and this machine before \"microlet up\"",
		Long: `Check the configuration and this machine before "microlet up". It takes the same flags, those of the kubelet
among them. Without a configuration and a kubeconfig, it takes the command line of the kubelet that runs here, if one
does. It starts and changes nothing. It looks at all settings, the credentials and their end, the API server, the pods
of this node, the runtime, cgroups, reservations, the network plugin, ports, users, sysctls, kernel modules, swap and
disks.
It exits with 1 if anything would keep the agent or its pods from running, and with 0 if there are only warnings.`,
		Example: "  microlet check --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf\n" +
			"  microlet check --config=/var/lib/kubelet/config.yaml --print-config\n" +
			"  microlet check --like=kubelet --max-pods=50",
		Args: service.NoArguments,
	}
	c.flags.addTo(cmd)
	addOutput(cmd, &c.output, outputText)
	cmd.Flags().BoolVar(&c.printConfig, "print-config", c.printConfig,
		"print the effective KubeletConfiguration and where each value is from, and nothing else")
	cmd.Flags().StringVar(&c.like, "like", c.like,
		`"kubelet": take the command line of the kubelet that runs here, with the other flags after it`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return c.run(cmd, nil) }
	// A mistake in a flag is a finding beside the others, which an old kubelet's command line has most often.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		wrong := service.ExplainFlag(cmd, err)
		if errors.Is(wrong, pflag.ErrHelp) {
			return wrong
		}
		return c.run(cmd, wrong)
	})
	return cmd
}

// checkOptions are the flags of check.
type checkOptions struct {
	flags       *upFlags
	kubelet     *nodecheck.Kubelet // whose command line the flags begin with; nil without one
	output      string
	printConfig bool
	like        string
}

// likeKubelet is the value of --like.
const likeKubelet = "kubelet"

// ofKubelet are flags that name what to check.
var ofKubelet = []string{"config", "config-dir", "kubeconfig", "bootstrap-kubeconfig"}

func (c *checkOptions) run(cmd *cobra.Command, flagFaults error) error {
	if err := checkOutput(c.output, outputText); err != nil {
		return errors.Join(flagFaults, err)
	}
	if c.like != "" && c.like != likeKubelet {
		return errors.Join(flagFaults, fmt.Errorf("like is %q: use %q, or leave it out", c.like, likeKubelet))
	}
	host := c.flags.host(cmd.Context())
	named := slices.ContainsFunc(ofKubelet, cmd.Flags().Changed)
	if c.kubelet == nil && (c.like != "" || !named) {
		kubelet := nodecheck.FindKubelet(host.Root, host.Own)
		if kubelet != nil {
			return runAgain(cmd, kubelet)
		}
		if c.like != "" {
			return errors.New("--like=kubelet: no kubelet runs here: start it, or give its flags instead")
		}
	}
	warnings, wrong := c.flags.load()
	if c.printConfig {
		return c.flags.printConfig(cmd.OutOrStdout(), c.output, errors.Join(flagFaults, wrong))
	}
	for _, w := range c.flags.cfg.PlacementWarnings() {
		warnings = append(warnings, kubeletconfig.Warning{Message: w, Fields: []string{"--placement"}})
	}
	flagFindings := faults("flag", flagFaults)
	report := checkReport{Findings: append(flagFindings, settings(warnings, wrong)...), wrongFlags: len(flagFindings)}
	if wrong != nil {
		var err error
		if report.dropIn, err = kubeletconfig.SuggestDropIn(c.flags.cfg.Kubelet, wrong); err != nil {
			return err
		}
		report.DropIn, report.Losses = string(report.dropIn.YAML), report.dropIn.Losses
	}
	host.Refused, host.Like = fieldsOf(wrong), c.kubelet
	report.Findings = append(report.Findings, nodecheck.Run(cmd.Context(), host, c.flags.cfg.Kubelet)...)
	return report.show(cmd.OutOrStdout(), c.output)
}

// runAgain checks with the kubelet's command line before the flags that were given.
func runAgain(cmd *cobra.Command, kubelet *nodecheck.Kubelet) error {
	again := newCheckOf(kubelet)
	again.SilenceErrors, again.SilenceUsage = true, true
	args := append([]string{}, kubelet.Args...) // cobra takes nil for the arguments of the process
	args = append(args, service.ArgumentsAfter(cmd)...)
	again.SetArgs(args)
	again.SetOut(cmd.OutOrStdout())
	again.SetErr(cmd.ErrOrStderr())
	return again.ExecuteContext(service.WithArguments(cmd.Context(), args))
}

// host is this machine. An agent that answers on the runtime folder has the ports.
func (f *upFlags) host(ctx context.Context) nodecheck.Host {
	status, err := askStatus(ctx, &f.cfg.Service)
	own := []int{int(status.PID)}
	for _, p := range status.Processes {
		own = append(own, int(p.PID))
	}
	return nodecheck.Host{
		Root: "/", RuntimeDir: f.cfg.Service.RuntimeDir, Running: err == nil, UID: os.Geteuid(), Now: time.Now(),
		Own: slices.DeleteFunc(own, func(pid int) bool { return pid == 0 }),
		Judge: func(manifest []byte) []string {
			return podsyncservice.CheckManifest(manifest, "node", false).GetRefusedFields()
		},
	}
}

// printedConfig is what "microlet check --print-config -o json" prints.
type printedConfig struct {
	// Refused is what is wrong with the configuration, which is then not what a node would run with.
	Refused []string                            `json:"refused,omitempty"`
	Config  kubeletv1beta1.KubeletConfiguration `json:"config"`
	// Flags are those that no field mirrors.
	Flags map[string]string `json:"flags"`
	// Sources are where values are from, by field or --flag; what is absent is a default.
	Sources map[string]string `json:"sources"`
}

// printConfig prints the configuration, and first that it is refused, if it is.
func (f *upFlags) printConfig(w io.Writer, output string, wrong error) error {
	k := f.cfg.Kubelet
	if k == nil {
		return wrong
	}
	p := printedConfig{Config: k.Masked().Kubelet, Flags: k.OwnFlags(), Sources: k.Provenance}
	for _, one := range kubeletconfig.Flatten(wrong) {
		p.Refused = append(p.Refused, one.Error())
	}
	if output != outputText {
		return errors.Join(encodeAs(w, output, p), wrong)
	}
	text, err := k.Annotated()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, why := range p.Refused {
		fmt.Fprintf(&b, "# Refused: %s\n", strings.ReplaceAll(why, "\n", " "))
	}
	b.Write(text)
	_, err = io.WriteString(w, b.String())
	return errors.Join(err, wrong)
}

// faults are the findings about what is refused.
func faults(check string, wrong error) []nodecheck.Finding {
	var all []nodecheck.Finding
	for _, err := range kubeletconfig.Flatten(wrong) {
		f := nodecheck.Finding{Check: check, State: nodecheck.Failed, Detail: err.Error()}
		if p := (kubeletconfig.Problem{}); errors.As(err, &p) {
			f.Remedy, p.Remedy = p.Remedy, ""
			f.Detail = strings.TrimSuffix(p.Error(), ": ")
		}
		all = append(all, f)
	}
	return all
}

// fieldsOf are the settings that an error is about.
func fieldsOf(wrong error) (fields []string) {
	for _, err := range kubeletconfig.Flatten(wrong) {
		if p := (kubeletconfig.Problem{}); errors.As(err, &p) {
			fields = append(fields, p.Field)
		}
	}
	return fields
}

// settings are the findings about the configuration.
func settings(warnings []kubeletconfig.Warning, wrong error) []nodecheck.Finding {
	all := faults("configuration", wrong)
	for _, w := range warnings {
		all = append(all, nodecheck.Finding{
			Check: "configuration", State: nodecheck.Warning, Detail: w.Message + ": " + strings.Join(w.Fields, ", "),
		})
	}
	if wrong == nil {
		all = append(all, nodecheck.Finding{
			Check: "configuration", State: nodecheck.OK, Detail: "all settings are accepted",
		})
	}
	return all
}

// checkReport is what "microlet check -o json" prints.
type checkReport struct {
	Findings []nodecheck.Finding `json:"findings"`
	// DropIn is the file with which a refused configuration would start, and Losses what is lost by it.
	DropIn string   `json:"dropIn,omitempty"`
	Losses []string `json:"losses,omitempty"`

	dropIn     kubeletconfig.DropIn
	wrongFlags int
}

func (r *checkReport) show(w io.Writer, output string) error {
	failed := 0
	for _, f := range r.Findings {
		if f.State == nodecheck.Failed {
			failed++
		}
	}
	var err error
	if output == outputText {
		err = r.write(w)
	} else {
		err = encodeAs(w, output, r)
	}
	if failed == 1 {
		err = errors.Join(err, errors.New("1 fault was found: do what is said above, and check again"))
	} else if failed > 1 {
		err = errors.Join(err, fmt.Errorf("%d faults were found: do what is said above, and check again", failed))
	}
	return err
}

func (r *checkReport) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(t, "\t\tto do: %s\n", f.Remedy)
		}
	}
	if err := t.Flush(); err != nil || r.DropIn == "" {
		return err
	}
	var b strings.Builder
	b.WriteString("\nWith this file in the folder of --config-dir, such as " +
		"/etc/kubernetes/kubelet.conf.d/90-microlet.conf, ")
	switch n := len(r.dropIn.ByHand) + r.wrongFlags; n {
	case 0:
		b.WriteString("the settings are accepted:\n\n")
	case 1:
		b.WriteString("1 of the settings above remains to be corrected by hand:\n\n")
	default:
		fmt.Fprintf(&b, "%d of the settings above remain to be corrected by hand:\n\n", n)
	}
	for _, line := range strings.Split(strings.TrimSpace(r.DropIn), "\n") {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	b.WriteString("\nWhat changes by it:\n")
	for _, l := range r.Losses {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
