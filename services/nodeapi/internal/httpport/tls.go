package httpport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Certificates are the files of the HTTPS port, read again whenever they change.
type Certificates struct {
	settings *kubeletv1beta1.KubeletConfiguration
	clientCA *dynamiccertificates.DynamicFileCAContent // nil: no client certificates
	log      *slog.Logger

	mu      sync.Mutex
	config  *tls.Config
	lacking bool          // a handshake failed for want of a certificate
	started chan struct{} // closed when the serving certificate has been read
	serving *dynamiccertificates.DynamicCertKeyPairContent
	reload  *dynamiccertificates.DynamicServingCertificateController
}

// NewCertificates reads the CA of client certificates, if there is one, which must be right from the
// start: without it callers would be refused whom the operator meant to let in.
func NewCertificates(k *kubeletv1beta1.KubeletConfiguration, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{settings: k, log: log, started: make(chan struct{})}
	if file := k.Authentication.X509.ClientCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
		}
		c.clientCA = ca
	}
	return c, nil
}

// ClientCA verifies client certificates; nil when there are none.
func (c *Certificates) ClientCA() dynamiccertificates.CAContentProvider {
	if c.clientCA == nil {
		return nil
	}
	return c.clientCA
}

// TLS returns the configuration of the port. The first call reads the serving certificate, and fails while there is
// none. One that the node requests (serverTLSBootstrap) may come later: until then handshakes fail, as the kubelet's.
func (c *Certificates) TLS() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.config != nil {
		return c.config, nil
	}
	config, err := c.settingsOnly()
	if err != nil {
		return nil, err
	}
	if err := c.load(config); err != nil && !c.settings.ServerTLSBootstrap {
		return nil, err
	}
	config.GetConfigForClient = c.forClient
	c.config = config
	return config, nil
}

// errNoCertificate is what the kubelet says too.
var errNoCertificate = errors.New("no serving certificate available for the kubelet: is its request approved?")

// forClient returns the configuration with the serving certificate that is the current one.
func (c *Certificates) forClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	if c.reload == nil {
		if err := c.load(c.config); err != nil {
			if !c.lacking {
				c.log.Warn("no serving certificate yet; callers are refused", logkey.Path, c.settings.TLSCertFile, logkey.Err, err)
			}
			c.lacking = true
			c.mu.Unlock()
			return nil, errNoCertificate
		}
	}
	reload := c.reload
	c.mu.Unlock()
	return reload.GetConfigForClient(hello)
}

// settingsOnly is the configuration without a certificate.
func (c *Certificates) settingsOnly() (config *tls.Config, err error) {
	k := c.settings
	config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if config.MinVersion, err = cliflag.TLSVersion(k.TLSMinVersion); err != nil {
		return nil, fmt.Errorf("tlsMinVersion: %w", err)
	}
	if config.CipherSuites, err = cliflag.TLSCipherSuites(k.TLSCipherSuites); err != nil {
		return nil, fmt.Errorf("tlsCipherSuites: %w", err)
	}
	if config.CurvePreferences, err = cliflag.TLSCurvePreferences(k.TLSCurvePreferences); err != nil {
		return nil, fmt.Errorf("tlsCurvePreferences: %w", err)
	}
	for name, id := range cliflag.InsecureTLSCiphers() {
		if slices.Contains(config.CipherSuites, id) {
			c.log.Warn("cipher suite is insecure", "cipher", name)
		}
	}
	if config.MinVersion == tls.VersionTLS13 && len(config.CipherSuites) > 0 {
		c.log.Warn("cipher suites have no effect with TLS 1.3", logkey.Field, "tlsCipherSuites")
	}
	if c.clientCA != nil {
		config.ClientAuth = tls.RequestClientCert // who brings none may have a token
	}
	return config, nil
}

// load reads the serving certificate for the first time.
func (c *Certificates) load(config *tls.Config) error {
	k := c.settings
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving", k.TLSCertFile, k.TLSPrivateKeyFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	base := config.Clone()
	base.GetConfigForClient = nil // or the controller would ask itself
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, c.ClientCA(), serving, nil, nil)
	if err := controller.RunOnce(); err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	if c.clientCA != nil {
		c.clientCA.AddListener(controller)
	}
	serving.AddListener(controller)
	c.serving, c.reload = serving, controller
	close(c.started)
	return nil
}

// Run reads the files again as they change, until the context ends.
func (c *Certificates) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.clientCA != nil {
		wg.Go(func() { c.clientCA.Run(ctx, 1) })
	}
	select {
	case <-c.started:
		wg.Go(func() { c.serving.Run(ctx, 1) })
		wg.Go(func() { c.reload.Run(1, ctx.Done()) })
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}
