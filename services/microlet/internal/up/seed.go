package up

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/logkey"
)

// seedClientCertificate puts the client certificate that the kubeconfig contains into --cert-dir, as the kubelet does
// with rotateCertificates. "kubeadm init" waits for that: once the file is there, it has the kubeconfig name it, and
// the certificate is renewed. A valid one of the same subject that is there already and ends no sooner stays. Nothing
// else needs the file, so the node starts without it.
func (c *Config) seedClientCertificate() {
	node := &c.Kubelet.Node
	if c.Kubelet.Standalone() || !c.Kubelet.Kubelet.RotateCertificates {
		return
	}
	seeded, err := seed(node.Kubeconfig, node.CertDir)
	switch {
	case err != nil:
		slog.Warn("client certificate of the kubeconfig is not kept for its renewal", logkey.Path, node.CertDir,
			logkey.Err, err)
	case seeded:
		slog.Info("client certificate of the kubeconfig kept for its renewal", logkey.Path,
			clientcert.Path(node.CertDir))
	}
}

// seed keeps the certificate that the current context of a kubeconfig contains, unless there is one that comes before
// it.
func seed(kubeconfig, certDir string) (bool, error) {
	config, files, err := clientcert.Load(kubeconfig, certDir)
	if err != nil || files != nil {
		return false, err
	}
	cert, key, ok := clientcert.Embedded(config)
	if !ok {
		return false, nil
	}
	// The store would write before it finds out.
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return false, fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	store, err := certificate.NewFileStoreWithLogger(klog.Background().V(4), clientcert.PairName, certDir, certDir, "", "")
	if err != nil {
		return false, err
	}
	_, err = store.Update(cert, key)
	return err == nil, err
}
