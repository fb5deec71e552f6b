//go:build long

package storage

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestCSIKills kills podsync at each call that it makes for a pod of six volumes, each of another kind, before the
// driver has done its work and after that, when only the answer lacks. In the end the pod runs, or is gone, and nothing
// is left of it.
func TestCSIKills(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	k := &killing{CSI: s.StartCSI(), methods: map[string]int{}}
	mode := func(mode corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaimSpec) {
		return func(s *corev1.PersistentVolumeClaimSpec) { s.AccessModes = []corev1.PersistentVolumeAccessMode{mode} }
	}
	k.Claim("files")
	k.Claim("once", mode(corev1.ReadWriteOncePod))
	k.Claim("many", mode(corev1.ReadOnlyMany))
	k.Claim("block", scene.Block("8Mi"))
	k.Claim("grows", scene.Sized(k.size()))
	for _, after := range []bool{false, true} {
		k.each(after)
	}
	k.DeleteClaims("files", "once", "many", "block", "grows")
	k.KeepsContract()
	// Twice: a stage of five volumes, a publish of six, the growth of one, and the opposites of the first two.
	if least := 2 * (5 + 6 + 1 + 6 + 5); k.killed < least {
		t.Errorf("podsync was killed %d times, less than %d: the driver had too few calls", k.killed, least)
	}
	t.Logf("podsync was killed %d times, at %v", k.killed, k.methods)
}

// killing kills podsync at calls of the driver.
type killing struct {
	*scene.CSI
	pods    int
	killed  int
	methods map[string]int
}

// size is that of the claim that grows. Each pod finds it larger than the one before.
func (k *killing) size() string { return fmt.Sprintf("%dMi", 8+k.pods) }

// pod has six volumes: a folder, one for a single pod, one for many readers, a block device, a file system that has yet
// to grow, and an inline one. Their files are for a group.
func (k *killing) pod(name string) *corev1.Pod {
	p := scene.WithClaims(scene.PausePod(name), "files", "once", "many", "grows")
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == "many" {
			v.PersistentVolumeClaim.ReadOnly = true
		}
	}
	p = scene.WithInline(scene.WithDevices(p, "block"), "own")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4242))}
	return p
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
	k.Resize("grows", k.size())
	k.WaitNodeResize("grows")
	at := k.hold(number, after)
	k.CreatePods(k.pod(name))
	killed = k.killAt(at, "the pod's start", k.AreReady(name))
	k.WaitReady(scene.Patience, name)
	k.WaitCapacity("grows", resource.MustParse(k.size()))
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
	k.methods[held.Method]++
	k.killed++
	return true
}
