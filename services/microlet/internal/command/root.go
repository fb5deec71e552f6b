// Package command implements the command line of the binary.
//
// It provides "microlet <service>" for each service, "microlet up" for all of them, and the commands of the
// operator. It reports an error in the arguments with its flag and value before it starts anything.
package command

import (
	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
	"github.com/microlet/microlet/services/microlet/internal/group"
)

// Of returns the command line that args call. For a service, or a group of them, it has that alone: the flags of all
// the others would stay in the memory of each process of a node.
func Of(args []string) *cobra.Command {
	if name, called := group.NameOf(args); called {
		root := newRoot()
		root.AddCommand(group.Command(name, catalog.Services()))
		return root
	}
	if len(args) > 0 {
		for _, s := range catalog.Services() {
			if string(s.Role) == args[0] {
				root := newRoot()
				addService(root, s)
				return root
			}
		}
	}
	return New()
}

// New returns the whole command line.
func New() *cobra.Command {
	root := newRoot()
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
		addService(root, s)
	}
	holdCommands(root)
	addVersionFlag(root)
	completeHelp(root)
	return root
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "microlet",
		Short: "A Kubernetes node agent of small processes",
		Long: "microlet does the kubelet's work with small processes. \"microlet up\" takes the " +
			"kubelet's\ncommand line and runs all of them; \"microlet <service>\" runs one.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(service.ExplainFlag)
	root.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "service", Title: "Its services:"})
	return root
}

func addService(root *cobra.Command, s service.Definition) {
	c := s.Command()
	c.GroupID = "service"
	refuseByHand(c)
	root.AddCommand(c)
}
