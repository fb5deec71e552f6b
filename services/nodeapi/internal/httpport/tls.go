package httpport

import (
	"context"
	"crypto/tls"
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
	settings  *kubeletv1beta1.KubeletConfiguration
	clientCA  *dynamiccertificates.DynamicFileCAContent // nil: no client certificates
	requested *requestedPair                            // nil: the configured files are there from the start
	log       *slog.Logger

	mu      sync.Mutex
	config  *tls.Config
	started chan struct{} // closed when the first configuration is there
	serving *dynamiccertificates.DynamicCertKeyPairContent
	reload  *dynamiccertificates.DynamicServingCertificateController
}

// NewCertificates reads the CA of client certificates, if there is one, which must be right from the
// start: without it callers would be refused whom the operator meant to let in.
//
// With serverTLSBootstrap, requested is the file of the certificate and its key. The port opens without it, as the
// kubelet's does, and refuses handshakes until it is there.
func NewCertificates(k *kubeletv1beta1.KubeletConfiguration, requested string,
	log *slog.Logger) (*Certificates, error) {
	c := &Certificates{settings: k, log: log, started: make(chan struct{})}
	if k.ServerTLSBootstrap {
		c.requested = &requestedPair{file: requested, certFile: k.TLSCertFile, keyFile: k.TLSPrivateKeyFile, log: log}
	}
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

// TLS returns the configuration of the port. The first call reads the configured serving certificate, and fails
// while there is none.
func (c *Certificates) TLS() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.config != nil {
		return c.config, nil
	}
	config, err := c.base()
	if err != nil {
		return nil, err
	}
	var serving dynamiccertificates.CertKeyContentProvider
	if c.requested != nil {
		config.GetCertificate = c.requested.get
	} else {
		files := [2]string{c.settings.TLSCertFile, c.settings.TLSPrivateKeyFile}
		if c.serving, err = dynamiccertificates.NewDynamicServingContentFromFiles("serving", files[0], files[1]); err != nil {
			return nil, fmt.Errorf("serving certificate: %w", err)
		}
		serving = c.serving
	}
	controller := dynamiccertificates.NewDynamicServingCertificateController(config, c.ClientCA(), serving, nil, nil)
	if err := controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	if c.clientCA != nil {
		c.clientCA.AddListener(controller)
	}
	if c.serving != nil {
		c.serving.AddListener(controller)
	}
	config.GetConfigForClient = controller.GetConfigForClient
	c.config, c.reload = config, controller
	close(c.started)
	return config, nil
}

// base is the part of the configuration that stays.
func (c *Certificates) base() (*tls.Config, error) {
	k := c.settings
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	var err error
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

// Run reads the files again as they change, until the context ends.
func (c *Certificates) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.clientCA != nil {
		wg.Go(func() { c.clientCA.Run(ctx, 1) })
	}
	select {
	case <-c.started:
		if c.serving != nil {
			wg.Go(func() { c.serving.Run(ctx, 1) })
		}
		wg.Go(func() { c.reload.Run(1, ctx.Done()) })
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}
