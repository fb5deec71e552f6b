package up

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	libcgroups "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	unifiedMount = "/sys/fs/cgroup"
	// ownMark is an attribute of a cgroup that a node agent has made for itself.
	ownMark = "trusted.microlet"
)

// enterCgroup moves this process, and so all that it starts, into the cgroup of kubeletCgroups, which it makes. As with
// the kubelet, the cgroup is no unit of systemd, and a process in a container stays where it is. The node agent runs
// without it too.
func enterCgroup(name string, log *slog.Logger, inContainer func() (bool, error)) {
	if name == "" {
		return
	}
	isIn, err := inContainer()
	if err == nil && isIn {
		log.Info("kubeletCgroups has no effect in a container", logkey.Field, "kubeletCgroups", "value", name)
		return
	}
	if err == nil {
		err = moveTo(path.Join("/", name))
	}
	if err != nil {
		log.Warn("not moved into the cgroup of kubeletCgroups", logkey.Field, "kubeletCgroups", "value", name,
			logkey.Err, err)
		return
	}
	log.Info("moved into the cgroup of kubeletCgroups", "cgroup", name)
}

// moveTo moves this process into a cgroup of all hierarchies.
func moveTo(name string) error {
	dir, isNew := filepath.Join(unifiedMount, name), false
	if libcgroups.IsCgroup2UnifiedMode() {
		isNew = !libcgroups.PathExists(dir)
		// A node agent that ran there has left cgroups of its processes below: it may have none of its own then. A
		// cgroup of another program stays as it is.
		if _, err := unix.Getxattr(dir, ownMark, nil); err == nil {
			if err := takeControllersBack(dir); err != nil {
				return err
			}
		}
	}
	made, err := libmanager.New(&libcgroups.Cgroup{Path: name, Resources: &libcgroups.Resources{SkipDevices: true}})
	if err != nil {
		return err
	}
	if err := made.Apply(os.Getpid()); err != nil {
		return err
	}
	if !isNew {
		return nil
	}
	// Systemd knows nothing of it, so it may have the cgroups of limited processes below.
	return errors.Join(unix.Setxattr(dir, "trusted.delegate", []byte("1"), 0),
		unix.Setxattr(dir, ownMark, []byte("1"), 0))
}

// takeControllersBack takes the controllers of the cgroups below a cgroup.
func takeControllersBack(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(text)) {
		if err := os.WriteFile(file, []byte("-"+controller), 0); err != nil {
			return fmt.Errorf("take controller %s from the cgroups below %s: %w", controller, dir, err)
		}
	}
	return nil
}
