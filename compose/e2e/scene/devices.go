package scene

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
	"github.com/microlet/microlet/compose/e2e/internal/owners"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// DevicePlugin is a device plugin in a scenario, in a process of its own.
type DevicePlugin struct {
	*Scene
	// Resource is the extended resource of its devices.
	Resource string
	// Plan is what it has and does; see Follow.
	Plan deviceplugin.Plan

	process rig.Process
	// folder has the plan, the calls and the devices' files.
	folder string
	// registry: the agent finds its socket, and it does not register itself.
	registry bool
}

// StartDevicePlugin starts a device plugin that has these devices, all healthy, and waits until the node has them. It
// ends with the scenario.
func (s *Scene) StartDevicePlugin(name string, devices ...string) *DevicePlugin {
	s.T.Helper()
	d := s.NewDevicePlugin(name, devices...)
	d.Start()
	d.HasDevices(len(devices), len(devices))
	return d
}

// NewDevicePlugin is StartDevicePlugin without the start.
func (s *Scene) NewDevicePlugin(name string, devices ...string) *DevicePlugin {
	s.T.Helper()
	s.EnsureUp(s.T)
	d := &DevicePlugin{Scene: s, Resource: "example.com/" + name, folder: s.T.TempDir()}
	d.Plan.Devices = deviceplugin.Devices(devices...)
	if err := os.Mkdir(filepath.Join(d.folder, "files"), 0o755); err != nil {
		s.T.Fatal(err)
	}
	d.Follow()
	s.T.Cleanup(d.Kill)
	return d
}

// InRegistry has the agent find the plugin in its folder plugins_registry, from the next start on.
func (d *DevicePlugin) InRegistry() *DevicePlugin {
	d.registry = true
	return d
}

// Follow has the plugin do what Plan says now.
func (d *DevicePlugin) Follow(rules ...deviceplugin.Rule) {
	d.T.Helper()
	d.Plan.Rules = rules
	if err := d.Plan.Write(filepath.Join(d.folder, "plan")); err != nil {
		d.T.Fatal(err)
	}
}

// Start starts the plugin, with a socket of the same name as before.
func (d *DevicePlugin) Start() {
	d.T.Helper()
	d.StartAt(filepath.Base(d.Resource) + ".sock")
}

// StartAt starts the plugin with a socket of that name.
func (d *DevicePlugin) StartAt(socket string) {
	d.T.Helper()
	dir, args := d.DevicePluginsDir(), []string{"-kubelet=" + filepath.Join(d.DevicePluginsDir(), "kubelet.sock")}
	if d.registry {
		dir = d.PluginsRegistryDir()
		args = []string{"-registry=" + filepath.Join(dir, socket)}
	}
	var err error
	d.process, err = d.RunDevicePlugin(append(args, "-resource="+d.Resource, "-socket="+filepath.Join(dir, socket),
		"-plan="+filepath.Join(d.folder, "plan"), "-calls="+filepath.Join(d.folder, "calls"),
		"-files="+filepath.Join(d.folder, "files"))...)
	if err != nil {
		d.T.Fatal(err)
	}
}

// Kill kills the plugin, if it runs. Its socket stays.
func (d *DevicePlugin) Kill() {
	d.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := d.process.Stop(ctx, 0); err != nil {
		d.T.Error(err)
	}
}

// Stop ends the plugin, which removes its socket.
func (d *DevicePlugin) Stop() {
	d.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := d.process.Stop(ctx, Patience); err != nil {
		d.T.Error(err)
	}
}

// SignalPlugin sends the plugin a signal: one that is stopped by SIGSTOP hangs.
func (d *DevicePlugin) SignalPlugin(sig syscall.Signal) {
	d.T.Helper()
	if err := d.process.Signal(sig); err != nil {
		d.T.Fatal(err)
	}
}

// Runs reports whether the plugin runs.
func (d *DevicePlugin) Runs() bool { return d.process.Alive() }

// Calls are all calls that the plugin has had.
func (d *DevicePlugin) Calls() []deviceplugin.Line {
	d.T.Helper()
	lines, err := deviceplugin.ReadCalls(filepath.Join(d.folder, "calls"))
	if err != nil {
		d.T.Fatal(err)
	}
	return lines
}

// Called waits for a line of a method that is behind a number of lines, and wanted.
func (d *DevicePlugin) Called(behind int, method string, wanted func(deviceplugin.Line) bool) {
	d.T.Helper()
	Await(d.T, Patience, "a call of "+method, func() error {
		lines := d.Calls()
		if !slices.ContainsFunc(lines[behind:], func(l deviceplugin.Line) bool {
			return l.Method == method && wanted(l)
		}) {
			return fmt.Errorf("the calls are %+v", lines[behind:])
		}
		return nil
	})
}

// BeginsCall is for Called: any line is wanted.
func BeginsCall(deviceplugin.Line) bool { return true }

// HasDevices waits until the Node has so many devices of the plugin.
func (d *DevicePlugin) HasDevices(capacity, allocatable int) {
	d.T.Helper()
	d.Wait(Patience, "devices on the Node", func(v record.View) error {
		status, name := v.Node().Status, corev1.ResourceName(d.Resource)
		c, a := status.Capacity[name], status.Allocatable[name]
		if c.Value() != int64(capacity) || a.Value() != int64(allocatable) {
			return fmt.Errorf("the Node has %s of %s, %s of them allocatable, want %d and %d", &c, name, &a, capacity,
				allocatable)
		}
		return nil
	})
}

// Pod is a pod whose one container asks for so many devices, and says which it sees each time it starts: by a variable,
// and those of them that it also has as a file and as a device node.
func (d *DevicePlugin) Pod(name string, count int) *corev1.Pod {
	p := ScriptPod(name, fmt.Sprintf(`echo "devices: $%s"
for id in $(echo "$%s" | tr , ' '); do
	test "$(cat %s)" = "$id" && test -c %s && echo "has $id"
done
echo ==end
%s`, deviceplugin.EnvName(d.Resource), deviceplugin.EnvName(d.Resource), deviceplugin.FilePath(d.Resource, "$id"),
		deviceplugin.NodePath(d.Resource, "$id"), Forever))
	d.Ask(&p.Spec.Containers[0], count)
	return p
}

// Ask has a container ask for so many devices.
func (d *DevicePlugin) Ask(c *corev1.Container, count int) {
	amount := corev1.ResourceList{corev1.ResourceName(d.Resource): *resource.NewQuantity(int64(count), resource.DecimalSI)}
	c.Resources.Limits, c.Resources.Requests = amount, amount
}

// Seen returns the devices that a pod's container has found at its last start.
func (d *DevicePlugin) Seen(name string) ([]string, error) {
	p := d.Record.View().Pod(d.Namespace, name)
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return nil, fmt.Errorf("pod %s: %s", name, Describe(p))
	}
	text, err := d.ContainerLog(p, "main", int(p.Status.ContainerStatuses[0].RestartCount))
	if err != nil {
		return nil, err
	}
	before, whole := strings.CutSuffix(strings.TrimSpace(text), "==end")
	first, rest, _ := strings.Cut(before, "\n")
	ids, ok := strings.CutPrefix(first, "devices: ")
	if !whole || !ok {
		return nil, fmt.Errorf("pod %s says only %q", name, text)
	}
	all := strings.Split(ids, ",")
	var want strings.Builder
	for _, id := range all {
		fmt.Fprintf(&want, "has %s\n", id)
	}
	if rest != want.String() {
		return nil, fmt.Errorf("pod %s has the devices %q by its variable, and says %q", name, ids, rest)
	}
	return all, nil
}

// Agree waits until the pods' containers, the API of pod resources and the agent's checkpoint have the same owner of
// each device, and these pods have all that they ask for. Other pods of the scenario have no device.
func (d *DevicePlugin) Agree(names ...string) {
	d.T.Helper()
	Await(d.T, Patience, "agreement on the devices of "+d.Resource, func() error { return d.disagreement(names) })
}

func (d *DevicePlugin) disagreement(names []string) error {
	var known []string
	for _, device := range d.Plan.Devices {
		known = append(known, device.ID)
	}
	w, v := owners.World{Devices: known}, d.Record.View()
	for _, name := range names {
		ids, err := d.Seen(name)
		if err != nil {
			return err
		}
		w.Seen.Add(d.Namespace+"/"+name, ids...)
		asks := v.Pod(d.Namespace, name).Spec.Containers[0].Resources.Limits[corev1.ResourceName(d.Resource)]
		if len(ids) != int(asks.Value()) {
			return fmt.Errorf("pod %s has the devices %q, and asks for %s", name, ids, &asks)
		}
		uid := string(v.Pod(d.Namespace, name).UID)
		granted, err := owners.Granted(filepath.Join(d.DevicePluginsDir(), "kubelet_internal_checkpoint"), uid, d.Resource)
		if err != nil {
			return err
		}
		w.Granted.Add(d.Namespace+"/"+name, granted...)
	}
	listed, err := d.PodResources()
	if err != nil {
		return err
	}
	for _, p := range listed {
		for _, c := range p.GetContainers() {
			for _, of := range c.GetDevices() {
				if of.GetResourceName() == d.Resource {
					w.Listed.Add(p.GetNamespace()+"/"+p.GetName(), of.GetDeviceIds()...)
				}
			}
		}
	}
	if problems := w.Problems(); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// AfterRestart waits until each of these pods, on a node that was restarted, runs again or has failed, and returns how
// many have failed.
func (d *DevicePlugin) AfterRestart(patience time.Duration, names ...string) (failed int) {
	d.T.Helper()
	d.Wait(patience, "what becomes of the pods", func(v record.View) error {
		failed = 0
		for _, name := range names {
			if p := v.Pod(d.Namespace, name); p != nil && p.Status.Phase == corev1.PodFailed {
				failed++
			} else if err := d.Restarted(name, 1)(v); err != nil {
				return err
			}
		}
		return nil
	})
	d.T.Logf("%d of %d pods run again, %d failed", len(names)-failed, len(names), failed)
	return failed
}

// PodResources asks the API of pod resources for all pods.
func (s *Scene) PodResources() (pods []*podresourcesapi.PodResources, err error) {
	conn, err := grpc.NewClient("unix://"+s.PodResourcesSocket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
	defer cancel()
	got, err := podresourcesapi.NewPodResourcesListerClient(conn).List(ctx, &podresourcesapi.ListPodResourcesRequest{})
	return got.GetPodResources(), err
}
