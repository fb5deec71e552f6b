package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/services/internal/service"
)

// The forms in which commands answer.
const (
	outputTable = "table"
	outputText  = "text"
	outputName  = "name"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// addOutput adds the flag --output, whose values are those for a person, the first being the default, and those of
// encodeAs.
func addOutput(cmd *cobra.Command, output *string, human ...string) {
	cmd.Flags().StringVarP(output, "output", "o", *output, outputs(human))
}

// outputs lists the values of --output.
func outputs(human []string) string {
	var b strings.Builder
	for _, h := range append(human, outputJSON) {
		fmt.Fprintf(&b, "%q, ", h)
	}
	return strings.TrimSuffix(b.String(), ", ") + fmt.Sprintf(" or %q", outputYAML)
}

func checkOutput(output string, human ...string) error {
	for _, known := range append(human, outputJSON, outputYAML) {
		if output == known {
			return nil
		}
	}
	return fmt.Errorf("output is %q: use %s", output, outputs(human))
}

// encodeAs writes a value as YAML or, with any other output, as JSON.
func encodeAs(w io.Writer, output string, v any) error {
	if output != outputYAML {
		return encode(w, v)
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// checkPositive refuses a duration that nothing could be done in.
func checkPositive(flag string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s is %v: give a positive duration, such as 30s", flag, d)
	}
	return nil
}

func addRuntimeDir(cmd *cobra.Command, cfg *service.Config) {
	cmd.Flags().StringVar(&cfg.RuntimeDir, "runtime-dir", cfg.RuntimeDir,
		"runtime folder of the node agent that is asked")
}
