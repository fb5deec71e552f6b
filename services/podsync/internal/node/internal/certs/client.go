package certs

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"github.com/microlet/microlet/services/internal/clientcert"
)

// NewClient returns the manager of the client certificate. It is nil if the kubeconfig names no certificate of
// --cert-dir: another program renews its credentials.
func NewClient(o Options) (*Manager, error) {
	if o.Kubelet.Standalone() {
		return nil, nil
	}
	node := &o.Kubelet.Node
	_, files, err := clientcert.Load(node.Kubeconfig, o.Kubelet.ClientCertDir())
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	if files == nil || files.Certificate != clientcert.Path(node.CertDir) {
		return nil, nil
	}
	m := &Manager{o: o}
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "Counter of certificate renewal errors.",
	})
	ttl := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "Seconds until the client certificate expires, negative if it has; +Inf if there is none.",
	}, m.ttl)
	o.Metrics.MustRegister(m.failures, ttl)
	m.use = use{
		name: "client", pairName: clientcert.PairName,
		signer: certificatesv1.KubeAPIServerClientKubeletSignerName, usages: certificate.DefaultKubeletClientGetUsages,
		template:  func() *x509.CertificateRequest { return &x509.CertificateRequest{Subject: subject(o.NodeName)} },
		renews:    o.Kubelet.Kubelet.RotateCertificates,
		expires:   "ClientCertificateExpires",
		clientset: m.bootstrapped,
	}
	return m, nil
}

// subject is whom the signers take for the node.
func subject(node string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
}

// bootstrapped is who requests a client certificate: the node with the one that it has, or else with the bootstrap
// kubeconfig, which is read each time, because a token in it may have been replaced.
func (m *Manager) bootstrapped(current *tls.Certificate) (kubernetes.Interface, error) {
	node := &m.o.Kubelet.Node
	if current == nil {
		if node.BootstrapKubeconfig == "" {
			return nil, errors.New("there is no valid client certificate, and no --bootstrap-kubeconfig to request one with")
		}
		if err := m.sameServer(); err != nil {
			return nil, err
		}
		client, err := m.connect(node.BootstrapKubeconfig, "", nil)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-kubeconfig=%s: %w", node.BootstrapKubeconfig, err)
		}
		return client, nil
	}
	return m.asNode()
}

// asNode returns the client with the node's certificate.
func (m *Manager) asNode() (kubernetes.Interface, error) {
	node := &m.o.Kubelet.Node
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		return m.client, nil
	}
	client, err := m.connect(node.Kubeconfig, m.o.Kubelet.ClientCertDir(), m.o.Dial)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	m.client = client
	return client, nil
}

// sameServer refuses a bootstrap kubeconfig of another API server, or of another CA, than the kubeconfig's. All of
// the node's clients go by the kubeconfig, so a certificate of the other server would be of no use, and the next
// start would take it for valid and keep the kubeconfig. Without it, that start writes the kubeconfig.
func (m *Manager) sameServer() error {
	node := &m.o.Kubelet.Node
	other, err := clientcert.ReadCluster(node.BootstrapKubeconfig)
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig=%s: %w", node.BootstrapKubeconfig, err)
	}
	own, err := clientcert.ReadCluster(node.Kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	if own.Server == other.Server && own.Shares(other) {
		return nil
	}
	return fmt.Errorf("--bootstrap-kubeconfig=%s is of %s, and --kubeconfig=%s of %s or of another CA: restart microlet, "+
		"which rewrites the kubeconfig", node.BootstrapKubeconfig, other.Server, node.Kubeconfig, own.Server)
}

func (m *Manager) connect(kubeconfig, certDir string, dial clientcert.Dial) (kubernetes.Interface, error) {
	config, err := clientcert.Config(kubeconfig, certDir, dial)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "microlet-podsync"
	config.ContentType = m.o.Kubelet.Kubelet.ContentType
	return kubernetes.NewForConfig(config)
}
