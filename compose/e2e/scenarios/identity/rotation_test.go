//go:build long

package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	// life is that of the certificates that rotate. What is left of it when one is renewed, at least a tenth, is longer
	// than the 10 s that a renewed serving certificate may need to reach nodeapi.
	life = 3 * time.Minute
	// rotations of each certificate are seen.
	rotations = 10
	// many requests are all that come.
	many = 1000
)

// TestRotations: a node without credentials joins. Its client and its serving certificate rotate ten times each, and of
// each one request is denied. No probed pod, no stream, no watch and no new connection notices.
func TestRotations(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	clients := newSigner(t, s, life)
	servings := newSignerOf(t, s, life, certificatesv1.KubeletServingSignerName, x509.ExtKeyUsageServerAuth)
	servings.denyNext(many)
	began := time.Now()
	j.start(t, "--rotate-server-certificates")
	p := newPort(t, s)
	scene.Await(t, scene.Patience, "a request for a serving certificate", func() error {
		if _, denied := servings.answers(); denied == 0 {
			return errors.New("none was denied")
		}
		return nil
	})
	if serial, err := p.serial(); err == nil {
		t.Fatalf("the port has certificate %s, which was not approved", serial)
	}
	servings.denyNext(0)
	_, deniedFirst := servings.answers()
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(began) })
	if signed, _ := clients.answers(); len(signed) != 1 || signed[0] != j.user {
		t.Fatalf("%v got client certificates, want %s", signed, j.user)
	}
	scene.Await(t, scene.Patience, "a certificate of the cluster's CA", func() error {
		_, err := p.serial()
		return err
	})
	w := createProbedPods(s, scene.SteadyPods)
	const talk = "while true; do echo word; sleep 1; done"
	s.CreatePods(scene.ScriptPod("talks", talk))
	s.WaitReady(scene.Patience, "talks")
	streams := []*stream{open(t, s, "logs", "-f", "talks"), open(t, s, "exec", "talks", "--", "sh", "-c", talk)}
	p.watch(t)
	steady := time.Now()

	for n := 1; n <= rotations; n++ {
		switch n {
		case 3:
			clients.denyNext(1)
		case 5:
			servings.denyNext(1)
		}
		scene.Await(t, 2*life, "a rotation", func() error {
			signed, _ := clients.answers()
			serials, _ := p.seen()
			if len(signed) <= n || len(serials) <= n {
				return fmt.Errorf("%d client and %d serving certificates", len(signed), len(serials))
			}
			return nil
		})
		for _, f := range streams {
			f.flows(t)
		}
		t.Logf("%d rotations of each after %s", n, time.Since(steady).Round(time.Second))
	}
	time.Sleep(life / 3) // the certificates before the last ones have ended
	for _, f := range streams {
		f.flows(t)
	}
	judgeAnswers(t, s, clients, 1)
	judgeAnswers(t, s, servings, deniedFirst+1)
	if _, err := p.seen(); err != nil {
		t.Errorf("a new connection failed: %v", err)
	}
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old", age)
	}
	all, cut := watches(t, s, steady)
	for _, what := range cut {
		t.Error("a watch was cut: ", what)
	}
	if all == 0 {
		t.Error("no watch of the node has ended in all that time, so the API server has no data about watches")
	}
	for _, what := range refusals(t, s, steady) {
		t.Error("the API server did not know a caller: ", what)
	}
	t.Logf("%s: %d watches lasted their time, %d lines of a log and %d of a command came", time.Since(steady), all,
		streams[0].lines.Load(), streams[1].lines.Load())
}

// createProbedPods returns how they were when all had become ready. The agent that runs them ends them, before another
// one is started.
func createProbedPods(s *scene.Scene, number int) *scene.Witness {
	s.T.Helper()
	s.T.Cleanup(s.DeleteAllPods)
	var pods []*corev1.Pod
	var names []string
	for i := range number {
		pods = append(pods, scene.ProbedPod(fmt.Sprintf("probed-%d", i), scene.HTTPProbe))
		names = append(names, pods[i].Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience+time.Duration(len(names))*10*time.Second, names...)
	return s.Witness(names...)
}

// judgeAnswers judges that the node itself asked for each certificate but the first, and how many requests were denied.
func judgeAnswers(t *testing.T, s *scene.Scene, g *signer, wantDenied int) {
	t.Helper()
	signed, denied := g.answers()
	for _, who := range signed[1:] {
		if who != "system:node:"+s.NodeName() {
			t.Errorf("%s: %s asked", g.name, who)
		}
	}
	if denied != wantDenied {
		t.Errorf("%s: %d requests were denied, want %d", g.name, denied, wantDenied)
	}
}
