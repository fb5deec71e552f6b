package certs

import (
	"crypto/tls"
	"crypto/x509"
	"sync"

	"k8s.io/client-go/util/certificate"
)

// store is the files of a manager of client-go's, which reads them at its start only. From then on it knows of what it
// has written itself.
type store struct {
	certificate.FileStore
	// arrived is called with each certificate that the manager writes.
	arrived func(*tls.Certificate)

	// mu is held while a certificate is written: it is in the files before it is known.
	mu sync.Mutex
	// known is what the manager has read or written last, nil if there was none.
	known *x509.Certificate
}

// Current implements certificate.Store. It is for the manager alone.
func (s *store) Current() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.FileStore.Current()
	if err == nil {
		s.known = c.Leaf
	}
	return c, err
}

// Update implements certificate.Store.
func (s *store) Update(cert, key []byte) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.FileStore.Update(cert, key)
	if err == nil {
		s.known = c.Leaf
		s.arrived(c)
	}
	return c, err
}

// onDisk returns the certificate in the files, nil if there is none that can be read, and whether the manager does not
// know it, because another program has put it there.
func (s *store) onDisk() (c *tls.Certificate, replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.FileStore.Current()
	if err != nil {
		return nil, false
	}
	return c, !c.Leaf.Equal(s.known)
}
