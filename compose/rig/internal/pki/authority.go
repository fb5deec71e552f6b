package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	validity = 365 * 24 * time.Hour
	backdate = time.Hour
)

// Authority is a certificate authority of the rig.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pair Pair
}

// Pair is a certificate and its key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// Request says what a certificate is for.
type Request struct {
	CommonName    string   // the user, or the server's name
	Organizations []string // the user's groups
	DNSNames      []string // names of a server
	IPs           []net.IP // addresses of a server
	Server        bool     // may serve
	Client        bool     // may sign in
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	keyPEM, err := EncodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, pair: Pair{Cert: encodeCert(der), Key: keyPEM}}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() Pair { return a.pair }

// Issue makes a key and a certificate for it.
func (a *Authority) Issue(req Request, now time.Time) (Pair, error) {
	if req.CommonName == "" {
		return Pair{}, fmt.Errorf("issue certificate: no common name")
	}
	if !req.Server && !req.Client {
		return Pair{}, fmt.Errorf("issue certificate for %s: it is neither for a server nor for a client",
			req.CommonName)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for %s: %w", req.CommonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for %s: %w", req.CommonName, err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: req.CommonName, Organization: req.Organizations},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		DNSNames:              req.DNSNames,
		IPAddresses:           req.IPs,
	}
	if req.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if req.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for %s: %w", req.CommonName, err)
	}
	keyPEM, err := EncodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for %s: %w", req.CommonName, err)
	}
	return Pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

// EncodeKey returns a private key as PKCS #8 PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
