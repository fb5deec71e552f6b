package command

import (
	"fmt"
	"time"

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
