package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageColumns is the width of a terminal that help is wrapped for.
const usageColumns = 120

// internalFlags are set for the services by what starts them, and mean nothing on the agent's command line.
var internalFlags = []string{"api-credentials", "replica"}

// flagGroup is a part of a command's help.
type flagGroup struct {
	title string
	has   func(*pflag.Flag) bool
}

// groupUsage shows a command's flags in groups, each flag in the first that has it.
func groupUsage(cmd *cobra.Command, groups ...flagGroup) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		sets := make([]*pflag.FlagSet, len(groups))
		for i := range groups {
			sets[i] = pflag.NewFlagSet(groups[i].title, pflag.ContinueOnError)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			for i := range groups {
				if groups[i].has(f) {
					sets[i].AddFlag(f)
					return
				}
			}
		})
		var b strings.Builder
		fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.HasExample() {
			fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
		}
		for i := range groups {
			if sets[i].HasAvailableFlags() {
				fmt.Fprintf(&b, "\n%s:\n%s", groups[i].title, sets[i].FlagUsagesWrapped(usageColumns))
			}
		}
		_, err := io.WriteString(cmd.OutOrStdout(), b.String())
		return err
	})
}

// groupUsage shows the agent's own flags first, and those of the kubelet last.
func (f *upFlags) groupUsage(cmd *cobra.Command) {
	for _, name := range internalFlags {
		f.fs.Lookup(name).Hidden = true
	}
	groupUsage(cmd,
		flagGroup{"Flags", func(fl *pflag.Flag) bool { return !f.ofKubelet[fl.Name] && !f.cfg.OfService(fl.Name) }},
		flagGroup{"Flags of the services", func(fl *pflag.Flag) bool { return !f.ofKubelet[fl.Name] }},
		flagGroup{"Flags of the kubelet", func(fl *pflag.Flag) bool { return fl.Deprecated == "" }},
		flagGroup{"Flags of the kubelet that are deprecated", func(*pflag.Flag) bool { return true }},
	)
}
