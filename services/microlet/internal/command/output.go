package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/service"
)

// The forms in which commands answer.
const (
	outputTable = "table"
	outputText  = "text"
	outputJSON  = "json"
)

func addOutput(cmd *cobra.Command, output *string, human string) {
	cmd.Flags().StringVarP(output, "output", "o", *output, fmt.Sprintf("%q or %q", human, outputJSON))
}

func checkOutput(output, human string) error {
	if output != human && output != outputJSON {
		return fmt.Errorf("output is %q: use %q or %q", output, human, outputJSON)
	}
	return nil
}

func addRuntimeDir(cmd *cobra.Command, cfg *service.Config) {
	cmd.Flags().StringVar(&cfg.RuntimeDir, "runtime-dir", cfg.RuntimeDir,
		"runtime folder of the node agent that is asked")
}
