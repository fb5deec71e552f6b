package httpport

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certutil "k8s.io/client-go/util/cert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// pipes is a listener inside the process, so that time can be virtual.
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// from is a connection that comes from an address.
type from struct {
	net.Conn
	remote string
}

func (c from) RemoteAddr() net.Addr {
	host, port, _ := net.SplitHostPort(c.remote)
	var n int
	_, _ = fmt.Sscan(port, &n)
	return &net.TCPAddr{IP: net.ParseIP(host), Port: n}
}

// dial comes from an address, and returns the near end.
func (p *pipes) dial(remote string) net.Conn {
	near, far := net.Pipe()
	p.conns <- from{far, remote}
	return near
}

func server(h http.Handler, l Limits) *Server {
	return &Server{
		Name:    "test",
		Handler: h,
		Limits:  l,
		Log:     slog.New(slog.DiscardHandler),
		Metrics: NewMetrics(prometheus.NewRegistry()),
	}
}

// start serves on pipes until the test ends.
func start(t *testing.T, s *Server) *pipes {
	t.Helper()
	p := newPipes()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var config *tls.Config
	if s.TLS != nil {
		var err error
		if config, err = s.TLS(); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		done <- s.serveOn(ctx, config, p)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

func ask(c net.Conn) (string, error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// TestSlowLoris writes a header byte by byte.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, server(hello, Limits{Connections: 3, PerAddress: 3, Idle: time.Hour}))
		c := p.dial("192.0.2.1:1")
		go func() { _, _ = io.Copy(io.Discard, c) }() // it gets the reason
		began := time.Now()
		for {
			if _, err := io.WriteString(c, "G"); err != nil {
				break
			}
			time.Sleep(time.Second)
			if time.Since(began) > time.Minute {
				t.Fatal("who writes a byte a second is still served after a minute")
			}
		}
		if took := time.Since(began); took > headerTimeout+2*time.Second {
			t.Errorf("it was borne for %v", took)
		}
	})
}

func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan net.Conn, 1)
		p := start(t, server(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			taken <- c
		}), Limits{Connections: 3, PerAddress: 3, Idle: 8 * time.Minute}))
		c := p.dial("192.0.2.1:1")
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		stream := <-taken
		for range 5 { // what is used lives
			time.Sleep(7 * time.Minute)
			go func() { _, _ = io.WriteString(stream, "x") }()
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("an idle stream: %v, want its end", err)
		}
		if took := time.Since(began); took < 7*time.Minute || took > 10*time.Minute {
			t.Errorf("it ended after %v, want some 8 minutes", took)
		}
	})
}

func TestStreamsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan struct{})
		s := server(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); err != nil {
				t.Error(err)
			}
			close(taken)
		}), Limits{Connections: 3, PerAddress: 3})
		p := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.serveOn(ctx, nil, p) }()
		c := p.dial("192.0.2.1:1")
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-taken
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a stream outlives its server: %v", err)
		}
	})
}

// writePair makes a self-signed certificate for a name.
func writePair(t *testing.T, k *kubeletv1beta1.KubeletConfiguration, name string) {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	testpki.Replace(t, map[string][]byte{k.TLSCertFile: cert, k.TLSPrivateKeyFile: key})
}

// served is the name in the certificate that a client sees, and the version that was agreed on.
func served(t *testing.T, address string, max uint16) (string, uint16, error) {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: max})
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, c.ConnectionState().Version, nil
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	k := &kubeletv1beta1.KubeletConfiguration{
		TLSCertFile:       filepath.Join(dir, "s.crt"),
		TLSPrivateKeyFile: filepath.Join(dir, "s.key"),
		TLSMinVersion:     "VersionTLS13",
	}
	certificates, err := NewCertificates(k, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan net.Addr, 1)
	s := server(hello, Limits{Connections: 9, PerAddress: 9})
	s.Address, s.TLS, s.Listening = "127.0.0.1:0", certificates.TLS, func(a net.Addr) { open <- a }
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = certificates.Run(ctx) })
	wg.Go(func() { _ = s.Run(ctx) }) // there is no certificate yet: it is tried again
	writePair(t, k, "first")
	address := (<-open).String()
	if name, _, err := served(t, address, 0); err != nil || !strings.HasPrefix(name, "first@") {
		t.Fatalf("the certificate is of %q: %v", name, err)
	}
	if _, _, err := served(t, address, tls.VersionTLS12); err == nil {
		t.Error("an older version than tlsMinVersion is spoken")
	}
	writePair(t, k, "second")
	proctest.Await(t, time.Minute, "the second certificate is served", func() bool {
		name, _, err := served(t, address, 0)
		return err == nil && strings.HasPrefix(name, "second@")
	})
	if err := os.WriteFile(k.TLSPrivateKeyFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, _, err := served(t, address, 0); err != nil || !strings.HasPrefix(name, "second@") {
		t.Errorf("after a broken key the certificate is of %q: %v", name, err)
	}
}

func TestClientCAMustBeReadable(t *testing.T) {
	k := &kubeletv1beta1.KubeletConfiguration{}
	if c, err := NewCertificates(k, "", slog.New(slog.DiscardHandler)); err != nil || c.ClientCA() != nil {
		t.Errorf("without a CA: %v, %v", c.ClientCA(), err)
	}
	k.Authentication.X509.ClientCAFile = filepath.Join(t.TempDir(), "nosuch")
	if _, err := NewCertificates(k, "", slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "authentication.x509.clientCAFile") {
		t.Errorf("a CA that cannot be read: %v", err)
	}
}

// TestARequestedCertificate: the port is open before there is one. A renewal cuts no connection, and neither a file
// that is broken nor one that is gone takes what works away.
func TestARequestedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair := filepath.Join(t.TempDir(), "serving.pem")
		k := &kubeletv1beta1.KubeletConfiguration{ServerTLSBootstrap: true, TLSMinVersion: "VersionTLS12"}
		certificates, err := NewCertificates(k, pair, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		config, err := certificates.TLS()
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wg.Go(func() { _ = certificates.Run(ctx) })
		name := func() string {
			c, err := handshake(t, config)
			if err != nil {
				return err.Error()
			}
			return c.ConnectionState().PeerCertificates[0].Subject.CommonName
		}
		if got := name(); !strings.Contains(got, "internal error") {
			t.Fatalf("without a certificate: %s", got)
		}
		writeRequested(t, pair, "first", time.Hour)
		time.Sleep(pairPeriod)
		open, err := handshake(t, config)
		if got := name(); err != nil || got != "first" {
			t.Fatalf("the certificate is of %s, %v", got, err)
		}
		writeRequested(t, pair, "second", 2*time.Hour)
		time.Sleep(pairPeriod)
		if got := name(); got != "second" {
			t.Errorf("after the renewal the certificate is of %s", got)
		}
		if _, err := open.Write([]byte("x")); err != nil {
			t.Errorf("the renewal cut a connection: %v", err)
		}
		for how, spoil := range map[string]func() error{
			"broken": func() error { return os.WriteFile(pair, []byte("broken"), 0o600) },
			"gone":   func() error { return os.Remove(pair) },
		} {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pairPeriod)
			if got := name(); got != "second" {
				t.Errorf("%s: the certificate is of %s", how, got)
			}
		}
		time.Sleep(2 * time.Hour)
		if got := name(); !strings.Contains(got, "internal error") {
			t.Errorf("with one that has ended: %s", got)
		}
	})
}

// TestTheConfiguredPairIsServed until the one that is requested is there.
func TestTheConfiguredPairIsServed(t *testing.T) {
	dir := t.TempDir()
	k := &kubeletv1beta1.KubeletConfiguration{
		ServerTLSBootstrap: true,
		TLSCertFile:        filepath.Join(dir, "s.crt"), TLSPrivateKeyFile: filepath.Join(dir, "s.key"),
	}
	writePair(t, k, "configured")
	p := &requestedPair{
		file: filepath.Join(dir, "serving.pem"), certFile: k.TLSCertFile, keyFile: k.TLSPrivateKeyFile,
		log: slog.New(slog.DiscardHandler),
	}
	for _, want := range []string{"configured@", "requested"} {
		p.checked = time.Time{}
		c, err := p.get(nil)
		if err != nil || !strings.HasPrefix(c.Leaf.Subject.CommonName, want) {
			t.Errorf("the certificate is %v, %v, want that of %s", c, err, want)
		}
		writeRequested(t, p.file, "requested", time.Hour)
	}
}

// handshake connects a client to a server with the configuration; both last until the test ends.
func handshake(t *testing.T, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	mine, others := net.Pipe()
	server := tls.Server(from{others, "192.0.2.1:1"}, config)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if server.Handshake() == nil {
			_, _ = io.Copy(io.Discard, server) // until the client is closed
		}
		_ = server.Close() // the client learns of it by the end
	}()
	client := tls.Client(mine, &tls.Config{InsecureSkipVerify: true})
	t.Cleanup(func() { _ = mine.Close(); <-ended })
	return client, client.Handshake()
}

// writeRequested makes a self-signed certificate for a name, as client-go stores one.
func writeRequested(t *testing.T, file, name string, life time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now(), NotAfter: time.Now().Add(life),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	testpki.Replace(t, map[string][]byte{file: append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)})
}
