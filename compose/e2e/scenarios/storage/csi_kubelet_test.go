//go:build long

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestCSIOfTheKubelet holds the scenario to a live kubelet.
func TestCSIOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	csi(scene.New(t), func() {})
}

// TestCSIIsHandedOver gives the node from a kubelet to microlet and back, three times, under pods that write to their
// volumes. Nothing is unmounted, no container ends, and no line is lost.
func TestCSIIsHandedOver(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	c := s.StartCSI()
	names, volumes := []string{"kubelet", "microlet"}, map[string]string{}
	for _, name := range names {
		volumes[name] = c.Claim("data-" + name)
	}
	write := func(name string) {
		s.CreatePods(scene.WithInline(scene.WithClaims(scene.ScriptPod(name, fmt.Sprintf(
			`i=0; while :; do i=$((i+1)); echo $i >>/data-%s/lines; echo $i >/own/line; sleep 0.05; done`, name)),
			"data-"+name), "own"))
		s.WaitReady(scene.Patience, name)
	}
	write("kubelet")
	first := s.Witness("kubelet")
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	write("microlet")
	second := s.Witness("microlet")
	for range 3 {
		scene.Shared.SwitchTo(t, rig.AgentKubelet)
		grows(s, volumes)
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
		grows(s, volumes)
	}
	first.Untouched()
	second.Untouched()
	for _, l := range c.Calls() {
		if l.Method == csicalls.Unpublish || l.Method == csicalls.Unstage || l.Method == csicalls.Detach {
			t.Errorf("call %d, %s of %s, while the pods run", l.Call, l.Method, l.Volume)
		}
	}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the pods' end", s.AreGone(names...))
	for name, volume := range volumes {
		t.Logf("pod %s has written %d lines", name, lines(s, volume))
	}
	s.LeavesNothing(append(first.Pods, second.Pods...))
	c.LeavesNoVolume()
	c.DeleteClaims("data-kubelet", "data-microlet")
	c.KeepsContract()
}

// grows waits until each volume has more lines.
func grows(s *scene.Scene, volumes map[string]string) {
	s.T.Helper()
	for name, volume := range volumes {
		before := lines(s, volume)
		scene.Await(s.T, scene.Patience, "lines of pod "+name, func() error {
			if now := lines(s, volume); now <= before {
				return fmt.Errorf("there are %d lines, as before", now)
			}
			return nil
		})
	}
}

// lines counts the lines that a pod has written, none of which may lack.
func lines(s *scene.Scene, volume string) int {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(s.CSIFiles(volume), "lines"))
	if err != nil {
		s.T.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(text)) {
		if count++; strings.TrimSpace(line) != fmt.Sprint(count) {
			s.T.Fatalf("line %d of volume %s is %q", count, volume, line)
		}
	}
	return count
}
