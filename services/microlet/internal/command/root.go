// Package command implements the command line of the binary.
//
// It provides "microlet <service>" for each service, "microlet up" for all of them, and the commands of the
// operator. It reports an error in the arguments with its flag and value before it starts anything.
package command

import (
	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
)

// New returns the whole command line.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "microlet",
		Short: "A Kubernetes node agent of small processes",
		Long: "microlet does the kubelet's work with small processes. \"microlet up\" takes the " +
			"kubelet's\ncommand line and runs all of them; \"microlet <service>\" runs one.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       thisVersion().String(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(service.ExplainFlag)
	root.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "service", Title: "Its services:"})
	for _, c := range []*cobra.Command{
		newUp(), newPrepare(), newCheck(),
		newStatus(), newHealth(), newTop(), newLogs(), newRestart(),
		newRunAs(), newDebug(),
		newPods(), newExplain(), newRunPod(), newRemovePod(),
		newVersion(),
	} {
		c.GroupID = "node"
		root.AddCommand(c)
	}
	for _, s := range catalog.Services() {
		c := s.Command()
		c.GroupID = "service"
		root.AddCommand(c)
	}
	holdCommands(root)
	completeHelp(root)
	return root
}
