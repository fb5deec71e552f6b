//go:build machine

package machine

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	pluginUnit    = "device-plugin.service"
	pluginProgram = "/usr/local/bin/device-plugin"
	pluginState   = "/var/lib/device-plugin"
	// pluginIsLate is how long after the node the plugin starts.
	pluginIsLate = time.Minute
)

// installPlugin installs a device plugin as a unit of the machine, which does not start by itself.
func installPlugin(s *scene.Scene, resource string, devices ...string) *scene.DevicePlugin {
	s.T.Helper()
	m, err := s.Machine()
	if err != nil {
		s.T.Fatal(err)
	}
	program, err := os.ReadFile(s.Binary(rig.DevicePlugin))
	if err == nil {
		err = m.Write(s.T.Context(), pluginProgram, program, 0o755)
	}
	if err != nil {
		s.T.Fatal(err)
	}
	plan, file := deviceplugin.Plan{Devices: deviceplugin.Devices(devices...)}, filepath.Join(s.T.TempDir(), "plan")
	if err := plan.Write(file); err != nil {
		s.T.Fatal(err)
	}
	put(s.T, m, file, path.Join(pluginState, "plan"))
	if err := s.MkdirAll(path.Join(pluginState, "files")); err != nil {
		s.T.Fatal(err)
	}
	dir := s.DevicePluginsDir()
	command := strings.Join([]string{
		pluginProgram, "-resource=" + resource, "-kubelet=" + path.Join(dir, "kubelet.sock"),
		"-socket=" + path.Join(dir, path.Base(resource)+".sock"), "-plan=" + path.Join(pluginState, "plan"),
		"-files=" + path.Join(pluginState, "files"),
	}, " ")
	unit := fmt.Sprintf("[Unit]\nDescription=device plugin\n[Service]\nExecStart=%s\nRestart=on-failure\n", command)
	if err := s.WriteFile("/etc/systemd/system/"+pluginUnit, []byte(unit)); err != nil {
		s.T.Fatal(err)
	}
	must(s.T, s, "systemctl", "daemon-reload")
	s.T.Cleanup(func() {
		if _, err := s.RunOnMachine(context.WithoutCancel(s.T.Context()), "systemctl", "stop", pluginUnit); err != nil {
			s.T.Error(err)
		}
	})
	return &scene.DevicePlugin{Scene: s, Resource: resource}
}

// TestDevicesOfTheTarget runs a node with devices by a unit for each service: resources starts when a plugin connects,
// and its end takes no device away. It comes before the tests whose plugins the node remembers.
func TestDevicesOfTheTarget(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	d := installPlugin(s, "example.com/target", "a", "b")
	installTarget(t, s)
	const unit = "microlet-resources.service"
	state := func() string { return must(t, s, "systemctl", "show", "-p", "ActiveState", "--value", unit) }
	if is := state(); is != "inactive" {
		t.Errorf("%s is %s before there is a device plugin", unit, is)
	}
	must(t, s, "systemctl", "start", pluginUnit)
	d.HasDevices(2, 2)
	if is := state(); is != "active" {
		t.Errorf("%s is %s with a device plugin", unit, is)
	}
	awaitHealth(t, s, role.Resources)
	d.CreatePods(d.Pod("before", 1))
	d.WaitReady(scene.Patience, "before")
	first := seenDevices(d, "before")

	pid := must(t, s, "systemctl", "show", "-p", "MainPID", "--value", unit)
	must(t, s, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", unit)
	scene.Await(t, scene.Patience, unit+" again", func() error {
		out, err := s.RunOnMachine(t.Context(), "systemctl", "show", "-p", "MainPID", "--value", unit)
		if now := strings.TrimSpace(out); err == nil && (now == "0" || now == pid) {
			err = fmt.Errorf("its pid is %s, and was %s", now, pid)
		}
		return err
	})
	awaitHealth(t, s, role.Resources)
	d.CreatePods(d.Pod("behind", 1))
	d.WaitReady(scene.Patience, "behind")
	if second := seenDevices(d, "behind"); len(second) != 1 || slices.Equal(first, second) {
		t.Errorf("two pods have the devices %q and %q", first, second)
	}
	if err := s.RunsAttempt("before", 0); err != nil {
		t.Errorf("after the end of %s: %v", unit, err)
	}
}

// TestDevicesAfterAReboot reboots the machine of a node on which all devices are pods', and starts the plugin a minute
// after the agent. With microlet the pods wait for the plugin, and all run again with the devices that they had. What
// becomes of them with the kubelet is only shown.
func TestDevicesAfterAReboot(t *testing.T) {
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		t.Run(string(agent), func(t *testing.T) {
			scene.Shared.SwitchTo(t, agent)
			d := installPlugin(scene.New(t), "example.com/reboot-"+string(agent), "a", "b", "c", "d", "e")
			rebootWithDevices(d, 5, agent == rig.AgentMicrolet)
		})
	}
}

func rebootWithDevices(d *scene.DevicePlugin, devices int, all bool) {
	d.T.Helper()
	must(d.T, d.Scene, "systemctl", "start", pluginUnit)
	d.HasDevices(devices, devices)
	owned := map[string][]string{}
	var names []string
	for i := range devices {
		names = append(names, fmt.Sprintf("pod-%d", i))
		d.CreatePods(d.Pod(names[i], 1))
	}
	d.WaitReady(2*scene.Patience, names...)
	for _, name := range names {
		owned[name] = seenDevices(d, name)
	}

	m, err := d.Machine()
	if err != nil {
		d.T.Fatal(err)
	}
	if err := m.Reboot(d.T.Context()); err != nil {
		d.T.Fatal(err)
	}
	clear(d.LostNamespaces) // no network namespace outlives its kernel
	if err := d.WaitNodeReady(d.T.Context()); err != nil {
		d.T.Fatal(err)
	}
	late := time.After(pluginIsLate)
	// A pod without devices waits for no plugin.
	d.CreatePods(scene.ScriptPod("plain", scene.Forever))
	d.WaitReady(2*scene.Patience, "plain")
	<-late
	must(d.T, d.Scene, "systemctl", "start", pluginUnit)

	failed := d.AfterRestart(3*scene.Patience, names...)
	if !all {
		return
	}
	if failed > 0 {
		d.T.Fatal("pods failed for a plugin that was late")
	}
	d.HasDevices(devices, devices)
	for _, name := range names {
		if now := seenDevices(d, name); !slices.Equal(now, owned[name]) {
			d.T.Errorf("pod %s has the devices %q, and had %q", name, now, owned[name])
		}
	}
}

func seenDevices(d *scene.DevicePlugin, name string) (seen []string) {
	d.T.Helper()
	scene.Await(d.T, scene.Patience, "the devices of pod "+name, func() (err error) {
		seen, err = d.Seen(name)
		return err
	})
	return seen
}
