package bus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/microlet/microlet/services/internal/atomicfile"
)

// viewCertLife is how long the certificate of the port for looking at the bus lasts: each start of the bus makes a
// new one.
const viewCertLife = 10 * 365 * 24 * time.Hour

// View is a loopback port for who looks at the bus with the tools of NATS. Who signs in there with the viewer's
// key reads every bucket and hint, and writes nothing.
type View struct {
	// Address is host:port; the host must be a loopback address. Port 0 takes a free one.
	Address string
	// CertFile is where the certificate is written that the port shows, for the tools to check it by.
	CertFile string
}

// Validate says what is wrong with the address.
func (v *View) Validate() error {
	_, _, err := v.hostPort()
	return err
}

func (v *View) hostPort() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(v.Address)
	if err != nil {
		return "", 0, fmt.Errorf("bus-view-address is %q: give it as host:port, e.g. 127.0.0.1:4222", v.Address)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return "", 0,
			fmt.Errorf("bus-view-address is %q: the bus is for this node only; use a loopback address such as 127.0.0.1",
				v.Address)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("bus-view-address is %q: use a port from 1 to 65535, or 0 for any", v.Address)
	}
	return host, int(number), nil
}

// listenOn has the server listen there, with a certificate of its own.
func (v *View) listenOn(opts *server.Options) error {
	host, port, err := v.hostPort()
	if err != nil {
		return err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	opts.Host, opts.Port = host, port
	cert, err := v.certificate()
	if err != nil {
		return fmt.Errorf("certificate of the port for looking at the bus: %w", err)
	}
	opts.TLS, opts.TLSTimeout = true, authTimeout.Seconds()
	opts.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	return nil
}

// certificate makes one that signs itself, and writes it down.
func (v *View) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "microlet bus"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(viewCertLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := atomicfile.Write(v.CertFile, text, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1}); err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
