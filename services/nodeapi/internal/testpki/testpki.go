// Package testpki creates valid and invalid certificate authorities and certificates for tests.
package testpki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is its own certificate.
	PEM []byte
}

// New returns an authority of that name.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
	}
	a := &Authority{t: t, cert: template, key: key}
	der := a.sign(template, key)
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.PEM = encode("CERTIFICATE", der)
	return a
}

func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Leaf says what a certificate is for, from when until when, counted from now.
type Leaf struct {
	// Name is the common name, which of a client's is the user.
	Name     string
	Usage    []x509.ExtKeyUsage
	From, To time.Duration
}

// Client is a leaf of a client that is good for an hour.
func Client(name string) Leaf {
	return Leaf{Name: name, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, From: -time.Minute, To: time.Hour}
}

// Server is a leaf of a server that is good for an hour.
func Server(name string) Leaf {
	return Leaf{Name: name, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, From: -time.Minute, To: time.Hour}
}

// Issue signs the leaf, and returns its certificate and key in PEM.
func (a *Authority) Issue(l Leaf) (certificate, key []byte) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: l.Name, Organization: []string{"dev"}},
		DNSNames:     []string{"localhost"},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  l.Usage,
		NotBefore:    time.Now().Add(l.From),
		NotAfter:     time.Now().Add(l.To),
	}, k)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
}

// Pair is what Issue returns, as a TLS client shows it.
func (a *Authority) Pair(l Leaf) tls.Certificate {
	a.t.Helper()
	pair, err := tls.X509KeyPair(a.Issue(l))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

// Replace puts data into files by a rename each, as programs that renew certificates do.
func Replace(t testing.TB, files map[string][]byte) {
	t.Helper()
	for path, data := range files {
		if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
}
