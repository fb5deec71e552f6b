//go:build long

package storage

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestCSIKills kills podsync at each call that it makes for a pod of six volumes, before the driver has done its work
// and after that, when only the answer lacks. In the end the pod runs, or is gone, and nothing is left of it.
func TestCSIKills(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	c := s.StartCSI()
	k := &killing{CSI: c, claims: []string{"a", "b", "c", "d"}}
	for _, name := range k.claims {
		c.Claim(name)
	}
	for _, after := range []bool{false, true} {
		k.each(after)
	}
	c.DeleteClaims(k.claims...)
	c.KeepsContract()
	// A stage or publish for each of the volumes, and their opposites, each of them twice.
	if least := 2 * (4 + 6 + 4 + 6); k.killed < least {
		t.Errorf("podsync was killed %d times, less than %d: the driver had too few calls", k.killed, least)
	}
	t.Logf("podsync was killed %d times, at %v", k.killed, k.methods)
}

// killing kills podsync at calls of the driver.
type killing struct {
	*scene.CSI
	claims  []string
	pods    int
	killed  int
	methods map[string]int
}

// each kills it at each call, before or after the driver's work, of a pod that starts, and then of one that is deleted.
func (k *killing) each(after bool) {
	for number := 1; ; number++ {
		pod, killed := k.start(number, after)
		k.end(pod, 0, false)
		if !killed {
			break
		}
	}
	for number := 1; ; number++ {
		pod, _ := k.start(0, false)
		if !k.end(pod, number, after) {
			break
		}
	}
}

// start starts a pod, and kills podsync at a call of a number of those that follow. 0 is none.
func (k *killing) start(number int, after bool) (p *corev1.Pod, killed bool) {
	k.T.Helper()
	k.pods++
	name := fmt.Sprintf("pod-%d", k.pods)
	at := k.hold(number, after)
	k.CreatePods(scene.WithInline(scene.WithClaims(scene.PausePod(name), k.claims...), "e", "f"))
	killed = k.killAt(at, "the pod's start", k.AreReady(name))
	k.WaitReady(scene.Patience, name)
	return k.Record.View().Pod(k.Namespace, name), killed
}

// end deletes a pod, and kills podsync at a call of a number of those that follow. 0 is none.
func (k *killing) end(p *corev1.Pod, number int, after bool) (killed bool) {
	k.T.Helper()
	at := k.hold(number, after)
	k.DeletePods(p.Name)
	killed = k.killAt(at, "the pod's end", func(v record.View) error {
		if left := csicalls.Left(k.Calls()); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return k.AreGone(p.Name)(v)
	})
	k.Wait(scene.Patience, "the pod's end", k.AreGone(p.Name))
	k.LeavesNothing([]*corev1.Pod{p})
	k.LeavesNoVolume()
	return killed
}

// hold has the driver hold one of the calls that follow, and returns its number.
func (k *killing) hold(number int, after bool) int {
	k.T.Helper()
	if number == 0 {
		return 0
	}
	at := k.Numbers() + number
	k.Rules(csicalls.Rule{Number: at, Hold: true, After: after})
	return at
}

// killAt waits until the call is held or everything is done without it. If it is held, podsync is killed, and the
// driver goes on.
func (k *killing) killAt(number int, what string, done func(record.View) error) (killed bool) {
	k.T.Helper()
	if number == 0 {
		return false
	}
	var held csicalls.Line
	scene.Await(k.T, scene.Patience, fmt.Sprintf("call %d or %s", number, what), func() error {
		var found bool
		held, found = k.Called("", "", func(l csicalls.Line) bool { return l.Number == number })
		if found {
			return nil
		}
		return done(k.Record.View())
	})
	if held.Number == 0 {
		k.Rules()
		return false
	}
	k.Signal(k.T, syscall.SIGKILL, role.Podsync)
	// The driver sees that its caller has gone, and ends the call.
	scene.Await(k.T, scene.Patience, "the end of the call", func() error {
		if l, _ := k.Called("", "", func(l csicalls.Line) bool { return l.Number == number }); !l.Ends() {
			return errors.New("it is still held")
		}
		return nil
	})
	k.Rules()
	if k.methods == nil {
		k.methods = map[string]int{}
	}
	k.methods[held.Method]++
	k.killed++
	return true
}
