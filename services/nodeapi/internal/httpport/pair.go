package httpport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

// pairPeriod is how often the files of a pair are read while clients connect.
const pairPeriod = time.Second

// errNoCertificate is the kubelet's.
var errNoCertificate = errors.New("no serving certificate available for the kubelet")

// requestedPair is a certificate that is requested from the API server, and so may come after the port is open.
//
// It is read as clients connect: connections that are open keep the one that they began with.
type requestedPair struct {
	// file holds the certificate and its key.
	file string
	// certFile and keyFile are what is served until file is there; they may be empty.
	certFile, keyFile string
	log               *slog.Logger

	mu        sync.Mutex
	checked   time.Time
	cert, key []byte
	current   *tls.Certificate // nil: none is there yet
	failed    string
	refusing  bool // the last caller was refused
}

// get implements tls.Config.GetCertificate. One that has ended is not served.
func (p *requestedPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.checked) >= pairPeriod {
		p.checked = time.Now()
		p.read()
	}
	none := p.current == nil || time.Now().After(p.current.Leaf.NotAfter)
	if none && !p.refusing {
		p.log.Warn("no serving certificate is valid; callers are refused: is its request approved?", logkey.Path, p.file)
	}
	if p.refusing = none; none {
		return nil, errNoCertificate
	}
	return p.current, nil
}

// read replaces the current certificate by another one that is whole.
func (p *requestedPair) read() {
	cert, key, err := p.contents()
	if err == nil && bytes.Equal(cert, p.cert) && bytes.Equal(key, p.key) {
		p.failed = ""
		return
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(cert, key)
	}
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) && err.Error() != p.failed {
			p.failed = err.Error()
			p.log.Error("serving certificate cannot be read", logkey.Path, p.file, logkey.Err, err)
		}
		return
	}
	p.cert, p.key, p.current, p.failed = cert, key, &pair, ""
	p.log.Info("serving certificate is used", logkey.Path, p.file, "end", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
}

func (p *requestedPair) contents() (cert, key []byte, err error) {
	if cert, err = os.ReadFile(p.file); !errors.Is(err, os.ErrNotExist) || p.certFile == "" {
		return cert, cert, err
	}
	if cert, err = os.ReadFile(p.certFile); err != nil {
		return nil, nil, fmt.Errorf("tlsCertFile: %w", err)
	}
	if key, err = os.ReadFile(p.keyFile); err != nil {
		return nil, nil, fmt.Errorf("tlsPrivateKeyFile: %w", err)
	}
	return cert, key, nil
}
