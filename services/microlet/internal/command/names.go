package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
)

// suggestionDistance is how many letters a name may be away from the one that was meant.
const suggestionDistance = 2

// holdCommands makes a command one of others: alone it shows its help, and it refuses a name that none of them has.
func holdCommands(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = suggestionDistance
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return noCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// noCommand is the error of a name that is none of cmd's commands.
func noCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		meant := near[0]
		for _, n := range near {
			if strings.HasPrefix(n, name) {
				meant = n
			}
		}
		return fmt.Errorf("%q is no command: did you mean %s %s?", name, cmd.CommandPath(), meant)
	}
	return fmt.Errorf("%q is no command: see %s --help", name, cmd.CommandPath())
}

// completeHelp lets the commands that cobra adds to root refuse what they do not know, as the others do.
func completeHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, func(cmd *cobra.Command, args []string) error { return help(root, args) }
		case "completion":
			c.Long = "Print a script by which a shell completes microlet's command line. The help of each says how to\nload it."
			c.Short = "Print a script for a shell, which completes the command line"
			holdCommands(c)
			for _, shell := range c.Commands() {
				shell.Args = service.NoArguments
			}
		}
	}
}

// help shows the help of the command that the arguments name.
func help(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return noCommand(cmd, rest[0])
	}
	return cmd.Help()
}

// findRole is the role that an operator named.
func findRole(name string) (role.Role, error) {
	names := make([]string, 0, len(role.All()))
	for _, r := range role.All() {
		if string(r) == name {
			return r, nil
		}
		names = append(names, string(r))
	}
	return "", fmt.Errorf("%q is no service: name one of %s", name, strings.Join(names, ", "))
}
