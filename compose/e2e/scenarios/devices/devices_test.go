package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestDevices: pods get the devices that they ask for, and see them. A pod for which there is none left waits at the
// scheduler, or is rejected by the node. The status of a pod shows the health of its devices. A pod whose plugin is
// away waits for it, and says so.
func TestDevices(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	noProcessWithoutDevices(t)
	s := scene.New(t)
	d := s.StartDevicePlugin("device", "a", "b")
	lifecycle(d)
	waitsForPlugin(d)
}

// noProcessWithoutDevices judges that resources does not run on a node that never had a device plugin.
func noProcessWithoutDevices(t *testing.T) {
	t.Helper()
	_, err := os.Stat(filepath.Join(scene.Shared.DevicePluginsDir(), "kubelet_internal_checkpoint"))
	switch {
	case err == nil:
		t.Log("the node had devices before, so resources may run")
		return
	case !errors.Is(err, os.ErrNotExist):
		t.Fatal(err)
	}
	all, err := scene.Shared.ProcessStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is, ok := all[role.Resources]
	if !ok {
		t.Fatalf("microlet status does not have %s: %+v", role.Resources, all)
	}
	if is.PID != 0 {
		t.Errorf("%s runs with pid %d although nothing needs it: %s", role.Resources, is.PID, is.State)
	}
}

// lifecycle goes with two devices through all that every agent does.
func lifecycle(d *scene.DevicePlugin) {
	d.T.Helper()
	d.CreatePods(d.Pod("first", 1))
	d.WaitReady(scene.Patience, "first")
	d.CreatePods(d.Pod("second", 1))
	d.WaitReady(scene.Patience, "second")
	d.Agree("first", "second")

	// One pod goes by the scheduler, which knows how many devices there are, and one past it.
	d.CreatePods(d.Pod("third", 1), scene.OnNode(d.Pod("rejected", 1), d.NodeName()))
	d.Wait(scene.Patience, "a pod that the scheduler does not place", func(v record.View) error {
		p := v.Pod(d.Namespace, "third")
		if p == nil || record.PodCondition(p, corev1.PodScheduled) != corev1.ConditionFalse || p.Spec.NodeName != "" {
			return errors.New(scene.Describe(p))
		}
		return nil
	})
	d.Wait(scene.Patience, "a pod that the node rejects", isRejected(d, "rejected",
		"requested number of devices unavailable for "+d.Resource+". Requested: 1, Available: 0"))
	d.Agree("first", "second")

	health(d)

	d.DeletePods("first")
	d.WaitReady(scene.Patience, "third")
	d.Wait(scene.Patience, "the pod's end", d.AreGone("first"))
	d.Agree("second", "third")

	// A container that starts again has the same devices.
	before := seen(d, "third")
	d.EndContainer("third")
	d.Wait(scene.Patience, "the container's next start", d.Restarted("third", 1))
	d.Agree("second", "third")
	if now := seen(d, "third"); !slices.Equal(now, before) {
		d.T.Errorf("the container had the devices %q, and has %q after its restart", before, now)
	}
}

// health has one of the devices fail, and recover.
func health(d *scene.DevicePlugin) {
	d.T.Helper()
	broken := seen(d, "first")[0]
	for _, unhealthy := range []bool{true, false} {
		for i := range d.Plan.Devices {
			if d.Plan.Devices[i].ID == broken {
				d.Plan.Devices[i].Unhealthy = unhealthy
			}
		}
		d.Follow()
		left, want := 2, corev1.ResourceHealthStatusHealthy
		if unhealthy {
			left, want = 1, corev1.ResourceHealthStatusUnhealthy
		}
		d.HasDevices(2, left)
		d.Wait(scene.Patience, "the health of a device in the pod's status", func(v record.View) error {
			return errors.Join(hasHealth(d, v, "first", want), hasHealth(d, v, "second", corev1.ResourceHealthStatusHealthy))
		})
	}
	d.Agree("first", "second")
}

// hasHealth returns an error if the status of a pod does not show its one device with that health.
func hasHealth(d *scene.DevicePlugin, v record.View, pod string, want corev1.ResourceHealthStatus) error {
	containers := d.ContainerStatuses(v, pod)
	if len(containers) == 0 {
		return fmt.Errorf("pod %s: %s", pod, scene.Describe(v.Pod(d.Namespace, pod)))
	}
	c := containers[0]
	for _, r := range c.AllocatedResourcesStatus {
		if string(r.Name) == d.Resource && len(r.Resources) == 1 && r.Resources[0].Health == want {
			return nil
		}
	}
	return fmt.Errorf("container %s of pod %s has the resources %+v, want one device that is %s", c.Name, pod,
		c.AllocatedResourcesStatus, want)
}

// isRejected returns a condition: the node has rejected a pod with this in its message.
func isRejected(d *scene.DevicePlugin, pod, message string) func(record.View) error {
	return func(v record.View) error {
		p := v.Pod(d.Namespace, pod)
		if p == nil {
			return errors.New(scene.Describe(p))
		}
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "UnexpectedAdmissionError" ||
			!strings.Contains(p.Status.Message, message) {
			return fmt.Errorf("%s: reason %q, message %q; want UnexpectedAdmissionError and %q", scene.Describe(p),
				p.Status.Reason, p.Status.Message, message)
		}
		return nil
	}
}

func seen(d *scene.DevicePlugin, pod string) []string {
	d.T.Helper()
	ids, err := d.Seen(pod)
	if err != nil {
		d.T.Fatal(err)
	}
	return ids
}

// waitsForPlugin has the plugin go away when a pod needs it. Pods that have their devices run on, also when their
// containers start again.
func waitsForPlugin(d *scene.DevicePlugin) {
	d.T.Helper()
	d.DeletePods("second", "rejected")
	d.Wait(scene.Patience, "the end of pods", d.AreGone("second", "rejected"))
	d.Kill()
	d.HasDevices(2, 0)
	d.CreatePods(scene.OnNode(d.Pod("waits", 1), d.NodeName()))
	scene.Await(d.T, scene.Patience, "word of the plugin that is away", func() error {
		x, err := d.Explain("waits")
		if err != nil {
			return err
		}
		for _, c := range x.Causes {
			if strings.Contains(c.Message, d.Resource) {
				return nil
			}
		}
		return fmt.Errorf("%s, because of %+v", x.Verdict, x.Causes)
	})
	d.EndContainer("third")
	d.Wait(scene.Patience, "the container's next start", d.Restarted("third", 2))
	if p := d.Record.View().Pod(d.Namespace, "waits"); p.Status.Phase != corev1.PodPending {
		d.T.Errorf("the pod whose plugin is away is %s", scene.Describe(p))
	}
	d.StartAt("another.sock")
	d.HasDevices(2, 2)
	d.WaitReady(scene.Patience, "waits")
	d.Agree("third", "waits")
}
