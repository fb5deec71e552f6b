package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/compose/rig/internal/mounts"
)

// What a kubelet has by default, and upstream's suite of the node has no
// setting for.
const (
	defaultRoot    = "/var/lib/kubelet"
	defaultPodLogs = "/var/log/pods"
	defaultRuntime = "/run/containerd/containerd.sock" // where the kubelet's cAdvisor looks for containers
	defaultPods    = "/kubepods"                       // a cgroup
)

// ReadOnlyPort is the port, at the node's address, of the agent's API without authentication, in an instance with
// Options.DefaultPlaces.
const ReadOnlyPort = 10255

// Where a machine of the node's own has what upstream's suite of the node uses, in an instance with
// Options.DefaultPlaces. The suite runs in SuiteDir.
const (
	SuiteDir  = "/var/lib/node-suite"
	DropInDir = SuiteDir + "/kubelet.conf.d" // drop-ins of the agent's configuration
	// SuiteUnit is the agent's service, without its suffix: the suite takes kubelet-<word> for it.
	SuiteUnit = "kubelet-rig"
)

// makeDefaultPlaces gives the instance the machine's default places.
func (i *Instance) makeDefaultPlaces() error {
	for _, dir := range i.tree.Existing(defaultPods) {
		return fmt.Errorf(
			"cgroup %s exists: it belongs to a kubelet of this machine, or to another instance: stop that first", dir,
		)
	}
	if err := i.checkDevicePlugins(); err != nil {
		return err
	}
	if err := removeDevicePlugins(defaultRoot); err != nil {
		return err
	}
	// Links that lead nowhere would be in the way of the agent, which makes
	// folders below them.
	for dir, mode := range map[string]os.FileMode{i.RootDir(): 0o750, i.PodLogsDir(): 0o755, i.staticPodsDir(): 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("make instance folder: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(defaultRuntime), 0o711); err != nil {
		return fmt.Errorf("make the default place: %w", err)
	}
	for link, target := range map[string]string{
		defaultRoot:    i.RootDir(),
		defaultPodLogs: i.PodLogsDir(),
		defaultRuntime: i.RuntimeSocket(),
	} {
		if err := os.Symlink(target, link); err != nil {
			return fmt.Errorf("the default place is taken, by a kubelet of this machine or by another instance: %w",
				err)
		}
	}
	return nil
}

// removeDevicePlugins removes a kubelet's folder that holds nothing but a folder of device plugins and their sockets.
// The device plugins of a suite make it when they outlive the instance. A folder with anything else is a kubelet's.
func removeDevicePlugins(root string) error {
	info, err := os.Lstat(root)
	if err != nil || !info.IsDir() {
		return nil // a link, or nothing: making the link says so
	}
	for _, dir := range []string{root, filepath.Join(root, devicePlugins)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("look for a kubelet in the default place: %w", err)
		}
		for _, e := range entries {
			if dir == root && (e.Name() != devicePlugins || !e.IsDir()) || dir != root && e.Type() != os.ModeSocket {
				return nil
			}
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("remove what device plugins left: %w", err)
	}
	return nil
}

// defaultPlaces returns the machine's default places that lead to the
// instance.
func (i *Instance) defaultPlaces() []string {
	var found []string
	for _, link := range []string{defaultRoot, defaultPodLogs, defaultRuntime} {
		if target, err := os.Readlink(link); err == nil &&
			(mounts.Inside(target, i.r.Dir) || mounts.Inside(target, i.runDir())) {
			found = append(found, link)
		}
	}
	return found
}

// releaseDefaultPlaces gives the machine its default places back.
func (i *Instance) releaseDefaultPlaces() error {
	var problems []error
	for _, link := range i.defaultPlaces() {
		problems = append(problems, os.Remove(link))
	}
	_ = os.Remove(filepath.Dir(defaultRuntime)) // if it is empty
	return errors.Join(problems...)
}

func (i *Instance) staticPodsDir() string {
	return i.place(filepath.Join(i.r.Dir, "manifests"), "/etc/kubernetes/manifests")
}
