package up

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/microlet/microlet/services/internal/service"
)

// hidden is what a service does not see of the host. It sees its programs, the runtime folder and the folders that it
// writes to, whatever they are below.
func (c *Config) hidden(s service.Definition, programs ...string) []string {
	if s.Hidden == nil {
		return nil
	}
	needed := append(slices.Clone(programs), c.Service.RuntimeDir)
	if s.Folders != nil {
		needed = append(needed, s.Folders(c.Kubelet)...)
	}
	if s.OnDemand != nil && s.OnDemand.Sockets != nil {
		for _, socket := range s.OnDemand.Sockets(c.Kubelet) {
			needed = append(needed, socket.Path)
		}
	}
	return slices.DeleteFunc(s.Hidden(c.Kubelet), func(path string) bool {
		return slices.ContainsFunc(needed, func(n string) bool { return isBelow(n, path) })
	})
}

// isBelow reports whether a path is a folder or below it.
func isBelow(path, folder string) bool {
	below, err := filepath.Rel(folder, path)
	return err == nil && below != ".." && !strings.HasPrefix(below, "../")
}
