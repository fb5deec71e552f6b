//go:build upgrade

package upgrades

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestUpgrade gives a node another build and back, one process after the other, so that both builds speak with each
// other in each combination on the way. The pods of either build run on, and the node does its work all the time.
func TestUpgrade(t *testing.T) {
	before := scene.ExecutableBefore(t)
	scene.Shared.UseMicrolet(t)
	installed := scene.Shared.Install(t, before)
	s := scene.New(t)
	u := &upgrade{
		Scene: s, csi: s.StartCSI(), metrics: s.MetricsReader(), builds: []string{before, scene.Shared.Executable},
		// Pods with a gate of their own are never Ready.
		pods: s.RandomPods(podgen.Options{
			Seed:    scene.Seed(t, uint64(time.Now().UnixNano())),
			Without: append(podgen.Ending(), "readiness gate"),
		}),
	}
	u.csi.ClaimAll("old", "new")
	witnesses := []*scene.Witness{u.create("old", scene.SteadyPods)}
	var table strings.Builder
	for _, to := range []struct{ name, executable string }{
		{"new", scene.Shared.Executable}, {"back", before}, {"again", scene.Shared.Executable},
	} {
		installed.Replace(t, to.executable)
		for _, r := range scene.Processes { // the supervisor is the last, and restarts all
			name := fmt.Sprintf("%s-%s", to.name, r)
			start := s.DuringStart(name, func() { s.Signal(t, syscall.SIGTERM, r) }, r)
			installed.Runs(t, r)
			u.works(name + "-mixed")
			fmt.Fprintf(&table, "%-6s %-12s %s\n", to.name, r, start)
		}
		if to.name == "new" {
			s.WaitReady(scene.Patience, u.refused...)
			witnesses = append(witnesses, u.create("new", scene.SteadyPods/2))
		}
		for _, w := range witnesses {
			w.Untouched()
			w.NodeReady()
		}
	}
	t.Logf("SIGTERM to … with another build in its place: a pod created at that moment is Ready after …\n%s",
		table.String())
	if age := witnesses[0].LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
	var pods []*corev1.Pod
	var names []string
	for _, w := range witnesses {
		for _, p := range w.Pods {
			pods, names = append(pods, p), append(names, p.Name)
		}
	}
	s.DeletePods(names...)
	s.Wait(2*scene.Patience, "the pods' end", s.AreGone(names...))
	s.LeavesNothing(pods)
	u.csi.LeavesNoVolume()
	u.csi.DeleteClaims("old", "new")
	u.csi.KeepsContract()
}

type upgrade struct {
	*scene.Scene
	csi  *scene.CSI
	pods *podgen.Generator
	// metrics are those of the node, and builds are both programs.
	metrics *scene.MetricsReader
	builds  []string
	// refused are pods with a field that the older build does not know.
	refused []string
}

// create has random pods run, and one with the claim of that name.
func (u *upgrade) create(name string, count int) *scene.Witness {
	u.T.Helper()
	pods, names := []*corev1.Pod{scene.WithClaims(scene.PausePod(name), name)}, []string{name}
	for i := range count {
		p, traits := u.pods.Pod(fmt.Sprintf("%s-%d", name, i))
		u.T.Logf("%s: %s", p.Name, strings.Join(traits, ", "))
		pods, names = append(pods, p), append(names, p.Name)
	}
	u.CreatePods(pods...)
	var ready []string
	u.Wait(scene.Patience, "pods that are Ready or refused", func(v record.View) error {
		ready, u.refused = nil, nil
		for _, name := range names {
			if err := u.AreReady(name)(v); err == nil {
				ready = append(ready, name)
			} else if strings.Contains(scene.Describe(v.Pod(u.Namespace, name)), "does not support") {
				u.refused = append(u.refused, name)
			} else {
				return err
			}
		}
		return nil
	})
	u.T.Logf("refused: %v", u.refused)
	return u.Witness(ready...)
}

// works judges that the node does its work: a pod with a volume of a driver is started, probed, restarted and deleted,
// and kubectl reaches it.
func (u *upgrade) works(name string) {
	u.T.Helper()
	p := scene.WithInline(scene.ScriptPod(name, "echo "+scene.Begins+"; "+scene.Forever), "inline")
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-d", "/inline"}}},
		PeriodSeconds: 1,
	}
	u.CreatePods(p)
	u.WaitReady(scene.Patience, name)
	u.KubectlPrints(scene.Begins, "logs", name)
	u.KubectlPrints("in the container", "exec", name, "--", "echo", "in the container")
	if _, err := u.Explain(name); err != nil {
		u.T.Errorf("explain %s: %v", name, err)
	}
	u.EndContainer(name)
	u.Wait(scene.Patience, "a container's restart", u.Restarted(name, 1))
	u.WaitReady(scene.Patience, name)
	u.Wait(scene.Patience, "the event of a start", u.HasEvent(name, "Started"))
	w := u.Record.View().Pod(u.Namespace, name)
	u.DeletePods(name)
	u.Wait(scene.Patience, "the pod's end", u.AreGone(name))
	u.LeavesNothing([]*corev1.Pod{w})
	u.commands()
	u.deniesNothing()
}

// commands judges that podsync serves root's commands of either build.
func (u *upgrade) commands() {
	u.T.Helper()
	for _, build := range u.builds {
		out, err := exec.CommandContext(u.T.Context(), build, "rm-pod", "absent", "--runtime-dir="+u.RuntimeDir()).
			CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not found") {
			u.T.Errorf("%s rm-pod absent: %v\n%s", build, err, out)
		}
	}
}

// deniesNothing judges that no service has called a method that another one of the other build does not have.
func (u *upgrade) deniesNothing() {
	u.T.Helper()
	u.AwaitSlowly(scene.Patience, "the metrics of the node", func() error {
		_, page, err := u.metrics.Get(u.T.Context(), "/metrics")
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, "microlet_grpc_denied_total{") {
				u.T.Error(line)
			}
		}
		return err
	})
}
