package command

import (
	"fmt"
	"slices"
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

// wordsOfOthers are how kubectl, systemctl, docker, kubeadm, talosctl and cilium name what microlet has, or what is not
// its part.
var wordsOfOthers = map[string]string{
	"ps": "microlet pods", "get": "microlet pods", "ls": "microlet pods", "list": "microlet pods", "pod": "microlet pods",
	"describe": "microlet explain POD", "why": "microlet explain POD", "events": "microlet explain POD",
	"doctor": "microlet check", "validate": "microlet check", "preflight": "microlet check", "diagnose": "microlet check",
	"config": "microlet check --print-config", "configz": "microlet check --print-config",
	"bundle": "microlet debug bundle", "sysdump": "microlet debug bundle", "support": "microlet debug bundle",
	"bugreport": "microlet debug bundle", "report": "microlet debug bundle",
	"certs": "microlet status", "certificates": "microlet status", "node": "microlet status", "nodes": "microlet status",
	"service": "microlet status", "services": "microlet status", "info": "microlet status",
	"dashboard": "microlet top", "journal": "microlet logs", "log": "microlet logs",
	"start": "microlet up", "kill": "microlet restart SERVICE",
	"run": "microlet run-pod FILE", "apply": "microlet run-pod FILE", "create": "microlet run-pod FILE",
	"rm": "microlet rm-pod NAME", "delete": "microlet rm-pod NAME",
	"image": "crictl images", "images": "crictl images", "exec": "kubectl exec", "attach": "kubectl attach",
}

// noCommand is the error of a name that is none of cmd's commands. A name that is nearly a service's leads to none: a
// service is what "microlet up" starts, and not a person.
func noCommand(cmd *cobra.Command, name string) error {
	if meant, ok := wordsOfOthers[name]; ok && !cmd.HasParent() {
		return fmt.Errorf("%q is no command: did you mean %s?", name, meant)
	}
	meant := ""
	for _, near := range cmd.SuggestionsFor(name) {
		if isService(near) {
			continue
		}
		if meant == "" || strings.HasPrefix(near, name) {
			meant = near
		}
	}
	if meant != "" {
		return fmt.Errorf("%q is no command: did you mean %s %s?", name, cmd.CommandPath(), meant)
	}
	return fmt.Errorf("%q is no command: see %s --help", name, cmd.CommandPath())
}

func isService(name string) bool { return slices.Contains(role.All(), role.Role(name)) }

// refuseByHand has a service that a person types on a terminal, without a flag, say what starts it. Units, containers
// and "microlet up" have no terminal, or give flags.
func refuseByHand(cmd *cobra.Command) {
	start := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() > 0 || !isTerminal(cmd.InOrStdin()) {
			return start(cmd, args)
		}
		name := cmd.Name()
		see := fmt.Sprintf("see microlet status %s and microlet logs %s", name, name)
		if name == string(role.Stats) {
			see = "see microlet top and microlet status"
		}
		return fmt.Errorf("%s is a service, which microlet up starts: %s; to run it by itself, give it --runtime-dir", name,
			see)
	}
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
			var shells []string
			for _, shell := range c.Commands() {
				shell.Args = service.NoArguments
				shells = append(shells, shell.Name())
			}
			c.Args = func(_ *cobra.Command, args []string) error {
				if len(args) == 0 {
					return nil
				}
				return fmt.Errorf("there is no completion for %q: use one of %s", args[0], strings.Join(shells, ", "))
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
