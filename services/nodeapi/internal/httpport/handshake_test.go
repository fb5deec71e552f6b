package httpport

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/microlet/microlet/services/internal/testing/largecert"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// TestLargeCertificates has a stranger send a certificate of 200 KB, which would take 8 MiB for as long as the
// connection lasts.
func TestLargeCertificates(t *testing.T) {
	s := server(hello, Limits{Connections: 100, PerAddress: 100})
	secure(t, s)
	p := start(t, s)
	for addresses, served := range map[int]bool{1000: true, 50_000: false} {
		near := p.dial("10.0.0.1:1")
		// A pipe has no room: what the other end does not read any more would hold this one up.
		_ = near.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Client(near, &tls.Config{
			InsecureSkipVerify: true, Certificates: []tls.Certificate{largecert.Pair(t, addresses)},
		})
		if got, err := ask(c); (err == nil) != served {
			t.Errorf("a caller with a certificate of %d addresses is answered %q, %v", addresses, got, err)
		}
		_ = near.Close()
	}
}

// TestCertificatesOfStrangersAreCharged has strangers keep connections for which they gave a certificate. Who gave none
// and who is known keep theirs.
func TestCertificatesOfStrangersAreCharged(t *testing.T) {
	const conns, addresses = 20, 6000 // 24 KB, which take 1 MiB each
	s := server(hello, Limits{Connections: 100, PerAddress: 100, Bytes: 4 << 20})
	authority := secure(t, s)
	p := start(t, s)
	dial := func(remote string, pairs ...tls.Certificate) net.Conn {
		c := tls.Client(p.dial(remote), &tls.Config{InsecureSkipVerify: true, Certificates: pairs})
		t.Cleanup(func() { _ = c.NetConn().Close() })
		_, _ = ask(c) // who takes too much is closed
		return c
	}
	known := dial("10.0.0.1:1", authority.Pair(testpki.Client("apiserver")))
	modest := dial("10.0.0.2:1")
	for range conns {
		dial("10.0.0.3:1", largecert.Pair(t, addresses))
	}
	if got := testutil.ToFloat64(s.Metrics.evicted.WithLabelValues("test", reasonMemory)); got < conns*3/4 {
		t.Errorf("%v of %d connections are closed; the certificates of all take five times what they may", got, conns)
	}
	for name, c := range map[string]net.Conn{"who is known": known, "who gave no certificate": modest} {
		if got, err := ask(c); err != nil || got != "hello" {
			t.Errorf("%s is answered %q, %v", name, got, err)
		}
	}
}

// TestSmallHandshakesAreFree has strangers from many addresses take all memory that they may. A caller with a handshake
// of a usual size is served.
func TestSmallHandshakesAreFree(t *testing.T) {
	s := server(hello, Limits{Connections: 100, PerAddress: 100, Bytes: byteWeight})
	authority := secure(t, s)
	p := start(t, s)
	c := tls.Client(p.dial("10.0.0.1:1"), &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{authority.Pair(testpki.Client("apiserver"))},
	})
	defer c.NetConn().Close()
	if got, err := ask(c); err != nil || got != "hello" {
		t.Errorf("who is known is answered %q, %v", got, err)
	}
}

// TestLongChainsAreRefused of a caller whom they would authenticate, too: all certificates may have the name of the one
// that has signed the first.
func TestLongChainsAreRefused(t *testing.T) {
	s := server(hello, Limits{Connections: 100, PerAddress: 100})
	authority := secure(t, s)
	p := start(t, s)
	for certificates, served := range map[int]bool{maxCertificates: true, maxCertificates + 1: false} {
		pair := authority.Pair(testpki.Client("apiserver"))
		for len(pair.Certificate) < certificates {
			pair.Certificate = append(pair.Certificate, pair.Certificate[0])
		}
		near := p.dial("10.0.0.1:1")
		_ = near.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Client(near, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
		if got, err := ask(c); (err == nil) != served {
			t.Errorf("a caller with %d certificates is answered %q, %v", certificates, got, err)
		}
		_ = near.Close()
	}
}
