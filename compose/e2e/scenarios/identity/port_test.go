//go:build long

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
)

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
