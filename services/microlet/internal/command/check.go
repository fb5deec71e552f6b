package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/nodecheck"
)

func newCheck() *cobra.Command {
	flags := newUpFlags()
	output, printConfig := outputText, false
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Check the configuration and this machine before \"microlet up\"",
		Long: `Check the configuration and this machine before "microlet up". It takes the same flags, those of the kubelet
among them. It starts and changes nothing. It looks at all settings, the credentials and their end, the API server, the
runtime, cgroups, the network plugin, ports, users, sysctls, kernel modules, swap and disks.
It exits with 1 if anything would keep the agent or its pods from running, and with 0 if there are only warnings.`,
		Example: "  microlet check --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf\n" +
			"  microlet check --config=/var/lib/kubelet/config.yaml --print-config",
		Args: service.NoArguments,
	}
	flags.addTo(cmd)
	addOutput(cmd, &output, outputText)
	cmd.Flags().BoolVar(&printConfig, "print-config", printConfig,
		"print the effective KubeletConfiguration and where each value is from, and nothing else")
	check := func(cmd *cobra.Command, flagFaults error) error {
		if err := checkOutput(output, outputText); err != nil {
			return errors.Join(flagFaults, err)
		}
		warnings, wrong := flags.load()
		if printConfig {
			return flags.printConfig(cmd.OutOrStdout(), output, errors.Join(flagFaults, wrong))
		}
		flagFindings := faults("flag", flagFaults)
		report := checkReport{Findings: append(flagFindings, settings(warnings, wrong)...), wrongFlags: len(flagFindings)}
		if wrong != nil {
			var err error
			if report.dropIn, err = kubeletconfig.SuggestDropIn(flags.cfg.Kubelet, wrong); err != nil {
				return err
			}
			report.DropIn, report.Losses = string(report.dropIn.YAML), report.dropIn.Losses
		}
		host := flags.host(cmd.Context())
		host.Refused = fieldsOf(wrong)
		report.Findings = append(report.Findings, nodecheck.Run(cmd.Context(), host, flags.cfg.Kubelet)...)
		return report.show(cmd.OutOrStdout(), output)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return check(cmd, nil) }
	// A mistake in a flag is a finding beside the others, which an old kubelet's command line has most often.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		wrong := service.ExplainFlag(cmd, err)
		if errors.Is(wrong, pflag.ErrHelp) {
			return wrong
		}
		return check(cmd, wrong)
	})
	return cmd
}

// host is this machine. An agent that answers on the runtime folder has the ports.
func (f *upFlags) host(ctx context.Context) nodecheck.Host {
	_, err := askStatus(ctx, &f.cfg.Service)
	return nodecheck.Host{
		Root: "/", RuntimeDir: f.cfg.Service.RuntimeDir, Running: err == nil, UID: os.Geteuid(), Now: time.Now(),
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
