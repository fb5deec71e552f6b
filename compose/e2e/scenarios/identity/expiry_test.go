//go:build long

package identity

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// shortLife is that of certificates that expire.
const shortLife = time.Minute

// TestExpiryWithoutTheAPIServer: the client certificate expires while the API server is away. When that is back, the
// node gets a new certificate with the bootstrap kubeconfig, by itself. No container notices.
func TestExpiryWithoutTheAPIServer(t *testing.T) {
	s := scene.New(t)
	w := expireWithoutTheAPIServer(t, s)
	judgeContainers(t, s, w)
	s.CreatePods(scene.OnNode(scene.PausePod("comes"), s.NodeName()))
	s.WaitReady(scene.Patience, "comes")
}

// judgeContainers judges that the witness's pods have the same containers and become Ready again. The controller
// manager, which heard nothing of the node for a while, may have taken it for lost.
func judgeContainers(t *testing.T, s *scene.Scene, w *scene.Witness) {
	t.Helper()
	for _, was := range w.Pods {
		s.WaitReady(scene.Patience, was.Name)
		now := s.Record.View().Pod(s.Namespace, was.Name)
		if before, after := record.Containers(was), record.Containers(now); !maps.Equal(before, after) {
			t.Errorf("%s: containers were %v and are %v", was.Name, before, after)
		}
	}
}

// expireWithoutTheAPIServer returns what was before the API server went.
func expireWithoutTheAPIServer(t *testing.T, s *scene.Scene) *scene.Witness {
	t.Helper()
	j := newJoin(t, s)
	newSigner(t, s, shortLife)
	j.start(t)
	ctx := t.Context()
	// As that of most nodes, the agent was started again since the node has joined.
	if err := s.KillAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitNodeReady(ctx); err != nil {
		t.Fatal(err)
	}
	w := createProbedPods(s, scene.SteadyPods)
	pid, err := s.AgentPID()
	if err != nil {
		t.Fatal(err)
	}

	if err := s.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	end := j.end(t)
	time.Sleep(time.Until(end) + 5*time.Second)
	if now := j.end(t); !now.Equal(end) {
		t.Fatalf("the certificate was renewed, and ends at %s", now)
	}
	if err := s.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(began) })
	took := time.Since(began)
	restarted := ""
	if now, err := s.AgentPID(); err != nil || now != pid {
		restarted = ", after it was started again"
	}
	t.Logf("microlet renewed the Lease %s after the API server was back%s; %d requests were refused",
		scene.Milliseconds(took), restarted, len(refusals(t, s, began)))
	return w
}

// TestExpiryWhileRequestsAreDenied: all requests for a client certificate are denied until the last one has expired.
// Pods go on meanwhile, and the node comes back when a request is approved.
func TestExpiryWhileRequestsAreDenied(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	g := newSigner(t, s, shortLife)
	j.start(t)
	w := createProbedPods(s, scene.SteadyPods)

	g.denyNext(many)
	scene.Await(t, 2*shortLife, "a denied request", func() error {
		if _, denied := g.answers(); denied == 0 {
			return errors.New("none was denied")
		}
		return nil
	})
	end := j.end(t)
	time.Sleep(time.Until(end))
	_, denied := g.answers()
	scene.Await(t, scene.Patience, "a request of who has no valid certificate", func() error {
		if _, now := g.answers(); now == denied {
			return fmt.Errorf("%d were denied", now)
		}
		return nil
	})
	if len(refusals(t, s, end)) == 0 {
		t.Error("the API server refused no request, so the certificate is still good and this test shows nothing")
	}
	g.denyNext(0)
	began := time.Now()
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(began) })
	_, denied = g.answers()
	t.Logf("%d requests were denied; the Lease was renewed %s after requests are approved", denied,
		scene.Milliseconds(time.Since(began)))
	signed, _ := g.answers()
	if last := signed[len(signed)-1]; last != j.user {
		t.Errorf("%s asked for the last certificate, want %s", last, j.user)
	}
	judgeContainers(t, s, w)
}

// end is when the client certificate ends.
func (j *join) end(t *testing.T) time.Time {
	t.Helper()
	text, err := j.s.ReadFile(filepath.Join(j.pki, "kubelet-client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf.NotAfter
}
