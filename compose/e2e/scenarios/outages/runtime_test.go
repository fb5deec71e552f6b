//go:build long

package outages

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestRuntimeDown keeps the runtime away. The Node says so, containers run on, and what was asked for meanwhile is done
// when it is back.
func TestRuntimeDown(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(scene.ScriptPod("ends", scene.Forever), scene.PausePod("goes"))
	s.WaitReady(scene.Patience, "ends", "goes")
	first := mainProcess(s, "ends")
	if err := s.StopContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	s.CreatePods(scene.PausePod("comes"))
	s.DeletePods("goes")
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Wait(scene.Patience, "a Node that is not Ready", func(v record.View) error {
		for _, c := range v.Node().Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("it is still Ready")
	})
	t.Logf("the Node is not Ready %s after the runtime's end", scene.Milliseconds(time.Since(stopped)))
	time.Sleep(time.Until(stopped.Add(scene.Outage)))
	if err := s.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.WaitReady(scene.Patience, "comes")
	s.Wait(scene.Patience, "the end of a pod that was deleted meanwhile", s.AreGone("goes"))
	s.Wait(scene.Patience, "the restart of what ended meanwhile", s.Restarted("ends", 1))
	t.Logf("all that waited for the runtime was done %s after its return", scene.Milliseconds(time.Since(back)))
	if err := s.WaitNodeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	sameContainers(s, w)
	if age := w.LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
}

// sameContainers judges that the containers of a witness' pods are those from before. Their Ready may have been taken
// from them meanwhile by the node controller.
func sameContainers(s *scene.Scene, w *scene.Witness) {
	s.T.Helper()
	s.SyncRecord()
	v := s.Record.View()
	for _, was := range w.Pods {
		now := v.Pod(s.Namespace, was.Name)
		if now == nil || fmt.Sprint(record.Containers(now)) != fmt.Sprint(record.Containers(was)) {
			s.T.Errorf("%s was touched: containers were %v, it is %s", was.Name, record.Containers(was), scene.Describe(now))
		}
	}
}

// mainProcess is the first process of a pod's one container.
func mainProcess(s *scene.Scene, pod string) int {
	s.T.Helper()
	_, id, _ := strings.Cut(scene.ContainerID(s.Record.View().Pod(s.Namespace, pod)), "://")
	pid, err := s.ContainerPID(id)
	if err != nil {
		s.T.Fatal(err)
	}
	return pid
}

const (
	// hangingPods are more than runtime calls may be under way at one time.
	hangingPods = 6
	// besideHung is less than a hung call is waited for, which takes two minutes.
	besideHung = time.Minute
)

// TestRuntimeCallsHang: the shims of some pods stop answering, so that what is asked of the runtime about these pods
// hangs. Everything else goes on.
func TestRuntimeCallsHang(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	var hung []string
	for i := range hangingPods {
		hung = append(hung, fmt.Sprintf("hangs-%d", i))
		s.CreatePods(scene.ScriptPod(hung[i], scene.Forever))
	}
	s.CreatePods(scene.ScriptPod("ends", scene.Forever), scene.PausePod("goes"))
	s.WaitReady(scene.Patience, append(hung, "ends", "goes")...)
	var shims []int
	for _, name := range hung {
		shims = append(shims, machine.Parent(mainProcess(s, name)))
	}
	thaw := func() {
		for _, pid := range shims {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
	t.Cleanup(thaw)
	for _, pid := range shims {
		if program := machine.Arguments(pid); len(program) == 0 || !strings.Contains(program[0], "shim") {
			t.Fatalf("the parent %d of a container is %q", pid, program)
		}
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	s.DeletePods(hung...)
	time.Sleep(2 * time.Second) // their stops hang

	begin := time.Now()
	s.CreatePods(scene.PausePod("comes"))
	s.DeletePods("goes")
	s.EndContainer("ends")
	s.WaitReady(besideHung, "comes")
	s.Wait(besideHung, "the end of another pod", s.AreGone("goes"))
	s.Wait(besideHung, "the restart of another pod's container", s.Restarted("ends", 1))
	t.Logf("while the calls about %d pods hang others start, end and restart within %s", len(hung),
		scene.Milliseconds(time.Since(begin)))
	time.Sleep(20 * time.Second) // the hung pods are past their grace period of 10 s
	s.SyncRecord()
	for _, name := range hung {
		if s.Record.View().Pod(s.Namespace, name) == nil {
			t.Errorf("pod %s is gone, and its container runs", name)
		}
	}
	s.CreatePods(scene.PausePod("comes-too"))
	s.WaitReady(besideHung, "comes-too")
	thaw()
	begin = time.Now()
	s.Wait(scene.Patience, "the end of the pods that hung", s.AreGone(hung...))
	t.Logf("the pods that hung are gone %s after their shims answer again", scene.Milliseconds(time.Since(begin)))
	s.LeavesNoContainer(hung...)
	w.Untouched()
	w.NodeReady()
}
