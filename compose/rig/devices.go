package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/mounts"
	"github.com/microlet/microlet/compose/rig/internal/process"
	"github.com/microlet/microlet/compose/rig/internal/supervise"
)

// DevicePlugin is a device plugin that does what a test asks for, as Binary names it in an instance with GroupDevices.
const DevicePlugin = build.DevicePlugin

// Process is a process that a method of an instance has started.
type Process = process.Record

// RunDevicePlugin starts a device plugin with these arguments. It runs until it is stopped, or until Down. Several may
// run at the same time. A node on a machine of its own has its plugins there: see Binary.
func (i *Instance) RunDevicePlugin(args ...string) (Process, error) {
	if i.onMachine() {
		return Process{}, fmt.Errorf("start %s: the agent of instance %s is on a machine of its own", DevicePlugin, i.r.Name)
	}
	if i.r.Binaries[DevicePlugin] == "" {
		return Process{}, fmt.Errorf("start %s: instance %s was made without the group %s", DevicePlugin, i.r.Name,
			GroupDevices)
	}
	group := i.programCgroup(DevicePlugin)
	if err := i.tree.Create(group, false); err != nil {
		return Process{}, err
	}
	return process.Start(process.Spec{
		Name: DevicePlugin, Path: i.r.Binaries[DevicePlugin], Args: args, Log: i.Log(DevicePlugin),
		Cgroups: i.tree.ProcsFiles(group),
	})
}

// devicePlugins is the name of the folder of device plugins in a kubelet's default root directory. A kubelet has it
// there whatever its own root directory is.
const devicePlugins = "device-plugins"

// DevicePluginsDir is the agent's folder of device plugins, on the node: their sockets, the agent's own, kubelet.sock,
// and its record of what it has given to pods.
func (i *Instance) DevicePluginsDir() string { return filepath.Join(i.RootDir(), devicePlugins) }

// PodResourcesSocket is the path of the socket at which the agent says which devices pods have, on the node.
func (i *Instance) PodResourcesSocket() string {
	return filepath.Join(i.RootDir(), "pod-resources", "kubelet.sock")
}

// PluginsRegistryDir is the folder in which the agent finds the sockets of plugins, on the node.
func (i *Instance) PluginsRegistryDir() string { return filepath.Join(i.RootDir(), "plugins_registry") }

// ownDevicePlugins is how an agent that has its folder of device plugins at a fixed path sees the instance's there. It
// is nothing for one that needs none of it.
func (i *Instance) ownDevicePlugins() supervise.Bind {
	if i.r.Agent != AgentKubelet || i.r.DefaultPlaces || i.onMachine() {
		return supervise.Bind{}
	}
	return supervise.Bind{From: i.DevicePluginsDir(), To: filepath.Join(defaultRoot, devicePlugins)}
}

// prepareDevicePlugins makes both folders before such an agent starts. The agent then has a mount namespace of its own,
// so its root directory must be a mount that is shared with the machine's namespace before: the kubelet makes it one
// that is shared, but only in its own namespace.
func (i *Instance) prepareDevicePlugins() error {
	b := i.ownDevicePlugins()
	if b == (supervise.Bind{}) {
		return nil
	}
	// The modes are those by which a kubelet makes them.
	for _, dir := range []string{b.From, b.To} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the folder of device plugins: %w", err)
		}
	}
	return mounts.Share(i.RootDir())
}

// checkDevicePlugins returns an error if the place over which another instance's agent sees its folder of device
// plugins cannot go: pods of that instance have devices.
func (i *Instance) checkDevicePlugins() error {
	names, err := recorded()
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == i.r.Name {
			continue
		}
		r, err := loadRecord(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return err
		}
		if r.Agent == AgentKubelet && !r.DefaultPlaces && r.Binaries[DevicePlugin] != "" {
			return fmt.Errorf("the kubelet of instance %s has its device plugins in %s: stop that instance first", name,
				filepath.Join(defaultRoot, devicePlugins))
		}
	}
	return nil
}

// releaseDevicePlugins removes the empty folder over which agents see theirs, when no instance is left.
func releaseDevicePlugins() {
	for _, dir := range []string{filepath.Join(defaultRoot, devicePlugins), defaultRoot} {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return
		}
		_ = os.Remove(dir) // if it is empty
	}
}
