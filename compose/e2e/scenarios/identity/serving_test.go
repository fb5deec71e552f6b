//go:build long

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// servingLife leaves a renewed certificate time to reach nodeapi: a tenth of it is more than the 10 s between two
// looks.
const servingLife = 2 * time.Minute

// TestServingCertificate: the node's HTTPS port has a certificate of the cluster's CA once somebody has approved it. It
// is renewed twice, and nobody who follows a log or connects anew notices.
func TestServingCertificate(t *testing.T) {
	s := scene.New(t)
	g := newSignerOf(t, s, servingLife, certificatesv1.KubeletServingSignerName, x509.ExtKeyUsageServerAuth)
	g.denyNext(1)
	pki := filepath.Join(t.TempDir(), "pki")
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, "--rotate-server-certificates", "--cert-dir="+pki)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	p := newPort(t, s)
	if serial, err := p.serial(); err == nil {
		t.Fatalf("the port has certificate %s, which nobody approved", serial)
	}
	w := s.CreateSteadyPods()
	s.CreatePods(scene.ScriptPod("talks", "while true; do echo word; sleep 1; done"))
	s.WaitReady(scene.Patience, "talks")
	scene.Await(t, scene.Patience, "a certificate of the cluster's CA", func() error {
		_, err := p.serial()
		return err
	})
	if link, err := os.Readlink(filepath.Join(pki, "kubelet-server-current.pem")); err != nil ||
		!strings.HasPrefix(filepath.Base(link), "kubelet-server-20") {
		t.Errorf("the pair is %q, %v", link, err)
	}
	logs := follow(t, s, "talks")
	p.watch(t)
	scene.Await(t, 3*servingLife, "two renewals", func() error {
		if serials, _ := p.seen(); len(serials) < 3 {
			return fmt.Errorf("%d certificates", len(serials))
		}
		return nil
	})
	serials, failed := p.seen()
	if failed != nil {
		t.Errorf("a new connection failed: %v", failed)
	}
	signed, denied := g.answers()
	for _, who := range signed {
		if who != "system:node:"+s.NodeName() {
			t.Errorf("%s asked for a serving certificate", who)
		}
	}
	if denied != 1 {
		t.Errorf("%d requests were denied", denied)
	}
	before := logs.lines.Load()
	time.Sleep(3 * time.Second)
	if err := logs.ended(); err != nil || logs.lines.Load() == before {
		t.Errorf("kubectl logs -f ended after %d lines: %v", before, err)
	}
	w.Untouched()
	w.NodeReady()
	t.Logf("%d certificates on the port, %d lines of a log, no connection refused", len(serials), logs.lines.Load())
}

// port is the node's HTTPS port, for a client that trusts the cluster's CA alone.
type port struct {
	address string
	config  *tls.Config

	mu      sync.Mutex
	serials []string
	failed  error
}

func newPort(t *testing.T, s *scene.Scene) *port {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(s.Dir(), "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate in ca.crt")
	}
	return &port{
		address: net.JoinHostPort(s.NodeIP(), "10250"),
		config:  &tls.Config{RootCAs: pool, ServerName: s.NodeIP(), MinVersion: tls.VersionTLS12},
	}
}

// serial is the number of the certificate that a new connection gets.
func (p *port) serial() (string, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", p.address, p.config)
	if err != nil {
		return "", err
	}
	serial := c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	return serial, c.Close()
}

// watch connects every half second until the test ends.
func (p *port) watch(t *testing.T) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		for {
			serial, err := p.serial()
			p.note(serial, err)
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
}

func (p *port) note(serial string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = errors.Join(p.failed, err)
		return
	}
	if n := len(p.serials); n == 0 || p.serials[n-1] != serial {
		p.serials = append(p.serials, serial)
	}
}

// seen are the certificates, in their order, and why a connection failed.
func (p *port) seen() ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.serials...), p.failed
}
