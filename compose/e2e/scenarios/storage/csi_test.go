//go:build long

package storage

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestCSI: a volume is provisioned, attached, staged and published, keeps what a pod has written for the next one, and
// goes the same way back. podsync is killed meanwhile.
func TestCSI(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	csi(s, func() { s.KillDuringStart("meanwhile", role.Podsync) })
}

// csi runs pods with volumes of the driver. Between a container's two lives it lets something happen to the node agent.
func csi(s *scene.Scene, happen func()) {
	s.T.Helper()
	c := s.StartCSI()
	volume := c.Claim("data")
	p := scene.WithInline(scene.WithClaims(scene.ScriptPod("first",
		`echo "$HOSTNAME" >>/data/by; echo x >/own/x; stat -c 'group: %g' /data /own; cat /data/by; echo ==end; `+
			scene.Forever), "data"), "own")
	group := int64(4242)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	s.CreatePods(p)
	s.WaitReady(scene.Patience, "first")
	first := s.Record.View().Pod(s.Namespace, "first")
	sees(s, first, 0, "group: 4242\ngroup: 4242\nfirst\n==end")
	checkReceived(c, first, volume)
	happen()
	s.EndContainer("first")
	s.Wait(scene.Patience, "the container's next start", s.Restarted("first", 1))
	sees(s, first, 1, "first\nfirst\n==end")

	s.DeletePods("first")
	s.Wait(scene.Patience, "the pod's end", s.AreGone("first"))
	s.LeavesNothing([]*corev1.Pod{first})
	c.LeavesNoVolume()
	reader := scene.WithClaims(scene.ScriptPod("second",
		`cat /data/by; (echo x >/data/new) 2>/dev/null || echo read-only; echo ==end; `+scene.Forever), "data")
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	s.CreatePods(reader)
	s.WaitReady(scene.Patience, "second")
	sees(s, s.Record.View().Pod(s.Namespace, "second"), 0, "first\nfirst\nread-only\n==end")
	s.DeletePods("second")
	s.Wait(scene.Patience, "the pod's end", s.AreGone("second"))
	c.LeavesNoVolume()
	c.DeleteClaims("data")
	c.KeepsContract()
}

// checkReceived judges what the driver has received about a pod's volumes.
func checkReceived(c *scene.CSI, p *corev1.Pod, claimed string) {
	for _, inline := range []bool{false, true} {
		l, ok := c.Called(csicalls.Publish, "", func(l csicalls.Line) bool { return (l.Volume != claimed) == inline })
		if !ok {
			c.T.Errorf("no volume was published, with inline %t", inline)
			continue
		}
		for key, want := range map[string]string{
			"pod.name": p.Name, "pod.namespace": p.Namespace, "pod.uid": string(p.UID), "serviceAccount.name": "default",
			"ephemeral": fmt.Sprint(inline),
		} {
			if got := l.Context["csi.storage.k8s.io/"+key]; got != want {
				c.T.Errorf("volume %s is published with %s %q, want %q", l.Volume, key, got, want)
			}
		}
		if token, err := scene.Token(l, "csidriver"); err != nil || strings.Count(token, ".") != 2 {
			c.T.Errorf("volume %s is published with the token %q: %v", l.Volume, token, err)
		}
		if own := l.Context["inline"] == "own"; own != inline {
			c.T.Errorf("volume %s is published with the attributes %v", l.Volume, l.Context)
		}
	}
}

// sees waits until a container has written what it sees.
func sees(s *scene.Scene, p *corev1.Pod, restart int, want string) {
	s.T.Helper()
	scene.Await(s.T, scene.Patience, "what the container sees", func() error {
		text, err := s.ContainerLog(p, "main", restart)
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("not %q, but:\n%s", want, text)
		}
		return err
	})
}
