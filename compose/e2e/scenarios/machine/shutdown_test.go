//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

const (
	shutdownConfigDir = "/etc/microlet-shutdown.d"
	shutdownConfig    = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 30}
- {priority: 1000, shutdownGracePeriodSeconds: 30}
- {priority: 2000000000, shutdownGracePeriodSeconds: 30}
`
)

// lingers is a script that takes some seconds to end, and does not end well.
const lingers = "trap 'sleep 8; exit 1' TERM; " + scene.Forever

// TestShutdown reboots the machine. Pods end by their priority, the machine waits for them although podsync and
// nodestatus are killed meanwhile, and the API has the end of each when the machine goes down.
func TestShutdown(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	if err := scene.Shared.WriteFile(shutdownConfigDir+"/10-shutdown.conf", []byte(shutdownConfig)); err != nil {
		t.Fatal(err)
	}
	scene.Shared.UseMicrolet(t, "--config-dir="+shutdownConfigDir)
	s := scene.New(t)
	names := createByPriority(s)
	scene.Await(t, scene.Patience, "the inhibitor", func() error {
		out, err := s.RunOnMachine(t.Context(), "systemd-inhibit", "--list", "--no-pager")
		if err == nil && !strings.Contains(out, "microlet ends the pods") {
			err = errors.New(out)
		}
		return err
	})
	if out, err := s.RunOnMachine(t.Context(), "cat", "/etc/systemd/logind.conf.d/99-kubelet.conf"); err != nil ||
		!strings.Contains(out, "InhibitDelayMaxSec=90\n") {
		t.Errorf("logind's drop-in is %q, %v", out, err)
	}

	m, err := scene.Shared.Machine()
	if err != nil {
		t.Fatal(err)
	}
	mark := s.Record.Mark()
	begin := "setsid -f systemctl reboot > /dev/null 2>&1"
	if _, err := s.RunOnMachine(t.Context(), "sh", "-c", begin); err != nil {
		t.Fatal(err)
	}
	s.Wait(scene.Patience, "the first pod has ended", func(v record.View) error {
		return hasEnded(v.Pod(s.Namespace, names[0]))
	})
	s.Signal(t, syscall.SIGKILL, role.Podsync, role.NodeStatus)
	t.Log("podsync and nodestatus were killed in the middle of the shutdown")
	// It waits for the reboot that is under way; logind refuses a second one.
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitHealthy(t, scene.Patience)
	s.Wait(scene.Patience, "the node is ready again", func(v record.View) error {
		if c := readyCondition(v.Node()); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("Ready is %+v", c)
		}
		return nil
	})
	judgeShutdown(s, names, s.Record.Since(mark))
}

// createByPriority creates a pod for each phase, and waits until they run.
func createByPriority(s *scene.Scene) (names []string) {
	s.T.Helper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "shutdown-high"}, Value: 1000}
	classes := s.API.SchedulingV1().PriorityClasses()
	if _, err := classes.Create(s.T.Context(), class, metav1.CreateOptions{}); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = classes.Delete(context.Background(), class.Name, metav1.DeleteOptions{}) })
	for name, class := range map[string]string{
		"low": "", "high": class.Name, "critical": "system-cluster-critical",
	} {
		p := scene.ScriptPod(name, lingers)
		p.Spec.PriorityClassName = class
		p.Spec.TerminationGracePeriodSeconds = new(int64(20))
		s.CreatePods(p)
	}
	names = []string{"low", "high", "critical"}
	s.WaitReady(scene.Patience, names...)
	return names
}

// hasEnded returns nil if the pod has ended because of a shutdown, and the API knows the end of its container.
func hasEnded(p *corev1.Pod) error {
	if p == nil {
		return errors.New("there is no pod")
	}
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Terminated" ||
		p.Status.Message != "Pod was terminated in response to imminent node shutdown." {
		return fmt.Errorf("%s is %s %s %q", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message)
	}
	if c := p.Status.ContainerStatuses; len(c) != 1 || c[0].State.Terminated == nil {
		return fmt.Errorf("%s has the containers %+v", p.Name, c)
	}
	return nil
}

func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &n.Status.Conditions[i]
}

// judgeShutdown judges what the API learned since the shutdown began. Whether the Node was reported not ready is left
// out: the machine has no accounts of the services' users, and D-Bus refuses nodestatus.
func judgeShutdown(s *scene.Scene, names []string, entries []record.Entry) {
	s.T.Helper()
	var boot string
	var booted time.Time // when the Node had another boot ID
	ended := map[string]time.Time{}
	for _, e := range entries {
		switch object := e.Object.(type) {
		case *corev1.Node:
			id := object.Status.NodeInfo.BootID
			if boot != "" && id != boot && booted.IsZero() {
				booted = e.At
			}
			boot = id
		case *corev1.Pod:
			if object.Namespace == s.Namespace && ended[object.Name].IsZero() && hasEnded(object) == nil {
				ended[object.Name] = e.At
			}
		}
	}
	for i, name := range names {
		at := ended[name]
		if at.IsZero() || !booted.IsZero() && at.After(booted) {
			s.T.Errorf("the API had the end of %s at %v, the machine was back at %v", name, at, booted)
		}
		if i == 0 {
			continue
		}
		after := at.Sub(ended[names[i-1]])
		s.T.Logf("%s ended %s after %s", name, scene.Milliseconds(after), names[i-1])
		if after < 6*time.Second {
			s.T.Errorf("%s ended %v after %s, want the 8 s that it takes", name, after, names[i-1])
		}
	}
	for _, name := range names {
		if err := hasEnded(s.Record.View().Pod(s.Namespace, name)); err != nil {
			s.T.Errorf("after the reboot: %v", err)
		}
	}
}
