package outages

import (
	"fmt"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestContainerdRestart restarts the runtime. No container notices, and pods start as before.
func TestContainerdRestart(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	for i := range scene.Kills {
		name := fmt.Sprintf("mid-%d", i)
		s.CreatePods(scene.PausePod(name))
		if err := s.RestartContainerd(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.WaitReady(scene.Patience, name)
		s.DeletePods(name)
		t.Logf("a pod created as containerd stopped is Ready after %s", scene.Milliseconds(s.StartTime(name)))
	}
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
}
