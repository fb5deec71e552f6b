package clientcert

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// checkPeriod is how often requests look for a new certificate. Reading a file's attributes costs microseconds.
	checkPeriod = time.Second
	// handshakeTimeout is client-go's.
	handshakeTimeout = 10 * time.Second
)

// transport sends requests with the certificate that is in the files.
type transport struct {
	config rest.Config
	files  Files
	dial   Dial

	mu      sync.Mutex
	checked time.Time
	version [3]version
	current *http.Transport // nil until there is a certificate
}

// version distinguishes a file from the one that replaces it.
type version struct {
	file    os.FileInfo
	size    int64
	changed time.Time
}

func (v version) is(w version) bool {
	if v.file == nil || w.file == nil {
		return v.file == nil && w.file == nil
	}
	return os.SameFile(v.file, w.file) && v.size == w.size && v.changed.Equal(w.changed)
}

func newTransport(config *rest.Config, files Files, dial Dial) (*transport, error) {
	t := &transport{config: *rest.CopyConfig(config), files: files, dial: dial}
	// What is wrong beside the certificate is wrong at the start already.
	if _, err := rest.TLSConfigFor(&t.config); err != nil {
		return nil, err
	}
	return t, nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	current, err := t.get()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as RoundTripper demands; nothing was read
		}
		return nil, err
	}
	return current.RoundTrip(r)
}

// CloseIdleConnections closes the connections that serve no request.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

// get returns the transport for the certificate that is in the files now. One that cannot be read leaves the old one.
func (t *transport) get() (*http.Transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && time.Since(t.checked) < checkPeriod {
		return t.current, nil
	}
	t.checked = time.Now()
	now, err := t.look()
	if t.current != nil && (err != nil || now[0].is(t.version[0]) && now[1].is(t.version[1]) && now[2].is(t.version[2])) {
		return t.current, nil
	}
	if err != nil {
		return nil, fmt.Errorf("no client certificate yet: %w", err)
	}
	next, err := t.open()
	switch {
	case err == nil:
	case t.current != nil:
		return t.current, nil
	default:
		return nil, fmt.Errorf("client certificate %s: %w", t.files.Certificate, err)
	}
	if t.current != nil {
		// Connections that serve requests close when these have ended and IdleConnTimeout has passed.
		t.current.CloseIdleConnections()
	}
	t.current, t.version = next, now
	return next, nil
}

// look returns the versions of the files: the certificate, its key, and the CA if it is in a file.
func (t *transport) look() (all [3]version, err error) {
	for i, path := range []string{t.files.Certificate, t.files.Key, t.config.CAFile} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return all, err
		}
		all[i] = version{info, info.Size(), info.ModTime()}
	}
	return all, nil
}

// open reads the files.
func (t *transport) open() (*http.Transport, error) {
	pair, err := tls.LoadX509KeyPair(t.files.Certificate, t.files.Key)
	if err != nil {
		return nil, err
	}
	config, err := rest.TLSConfigFor(rest.CopyConfig(&t.config))
	if err != nil {
		return nil, err
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	// The server's list of authorities does not count: the signer of the certificate need not be in it.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	proxy := t.config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               proxy,
		TLSHandshakeTimeout: handshakeTimeout,
		TLSClientConfig:     config,
		MaxIdleConnsPerHost: 25,
		DialContext:         t.dial,
		DisableCompression:  t.config.DisableCompression,
	}), nil
}
