package rootdir

import (
	"log/slog"
	"path/filepath"

	"github.com/opencontainers/selinux/go-selinux"

	"github.com/microlet/microlet/services/internal/logkey"
)

// pluginsLabel is the kubelet's SELinux label for folders to which containers without privileges may write.
const pluginsLabel = "system_u:object_r:container_file_t:s0"

// plugins are the folders in which plugins have their sockets.
func (d Dir) plugins() []string {
	return []string{filepath.Join(string(d), "plugins"), filepath.Join(string(d), "plugins_registry")}
}

// selinuxHost is the SELinux of a machine.
type selinuxHost struct {
	enabled  func() bool
	setLabel func(path, label string) error
}

func thisHost() selinuxHost { return selinuxHost{selinux.GetEnabled, selinux.SetFileLabel} }

// labelPlugins opens the folders of plugins to containers without privileges. Those with privileges need no label.
func (d Dir) labelPlugins(on selinuxHost, log *slog.Logger) {
	if !on.enabled() {
		return
	}
	for _, dir := range d.plugins() {
		if err := on.setLabel(dir, pluginsLabel); err != nil {
			log.Warn("plugins without privileges may not work: the folder of their sockets has no SELinux label", logkey.Dir,
				dir, logkey.Err, err)
		}
	}
}
