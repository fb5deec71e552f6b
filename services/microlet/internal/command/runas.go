package command

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/microlet/internal/runas"
)

func newRunAs() *cobra.Command {
	return &cobra.Command{
		Use:   "run-as SERVICE COMMAND [flags of the command]",
		Short: "Become a service's user, with its groups and capabilities alone, and run another command",
		Long: "Become a service's user, with its groups and capabilities alone, and run another command of microlet in\n" +
			"place of this one, such as \"microlet run-as stats stats --runtime-dir=…\". It is for a container that needs\n" +
			"capabilities: Docker gives a user other than root none. It starts as root, with CAP_SETUID, CAP_SETGID,\n" +
			"CAP_SETPCAP and the capabilities of the service.",
		DisableFlagParsing: true, // the flags are the other command's
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
				return cmd.Help()
			}
			if len(args) < 2 {
				return fmt.Errorf("name a service and a command: %s", cmd.UseLine())
			}
			r, err := findRole(args[0])
			if err != nil {
				return err
			}
			id, err := role.Get(r)
			if err != nil {
				return err
			}
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			return runas.Exec(id, program, slices.Concat([]string{program}, args[1:]), os.Environ())
		},
	}
}
