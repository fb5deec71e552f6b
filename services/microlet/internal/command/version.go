package command

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// Version is what "microlet version -o json" prints.
type Version struct {
	Version string `json:"version"`
	// Kubernetes is the release whose kubelet microlet stands for.
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

func thisVersion() Version {
	return Version{
		Version: telemetry.Version, Kubernetes: "v" + kubeversion.Version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// String is the version in one line.
func (v Version) String() string {
	return fmt.Sprintf("microlet %s for Kubernetes %s (%s %s)", v.Version, v.Kubernetes, v.Go, v.Platform)
}

func newVersion() *cobra.Command {
	output, short := outputText, false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and that of Kubernetes which it stands for",
		Args:  service.NoArguments,
	}
	addOutput(cmd, &output, outputText)
	cmd.Flags().BoolVar(&short, "short", short, "print the version of microlet alone, such as v0.1.0")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output, outputText); err != nil {
			return err
		}
		if short {
			if output != outputText {
				return fmt.Errorf("--short prints text, and --output=%s asks for something else: leave out one of them", output)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), thisVersion().Version)
			return err
		}
		if output != outputText {
			return encodeAs(cmd.OutOrStdout(), output, thisVersion())
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), thisVersion())
		return err
	}
	return cmd
}

// addVersionFlag gives root the flag --version. Cobra's own has a template for its text, and a program that executes
// templates keeps every exported method of every type, since a template could call it: a third of the program.
func addVersionFlag(root *cobra.Command) {
	asked := root.Flags().BoolP("version", "v", false, "version for microlet")
	otherwise := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !*asked {
			return otherwise(cmd, args)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), thisVersion())
		return err
	}
}

// writeKubeletVersion answers the kubelet's flag --version, by which tools of a cluster learn the version of a node.
func writeKubeletVersion(w io.Writer, asked string) error {
	switch asked {
	case "true":
		_, err := fmt.Fprintln(w, "Kubernetes", thisVersion().Kubernetes)
		return err
	case "raw":
		_, err := fmt.Fprintln(w, thisVersion())
		return err
	}
	_, err := fmt.Fprintln(w, "Kubernetes", asked)
	return err
}
