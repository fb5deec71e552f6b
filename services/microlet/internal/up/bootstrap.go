package up

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/logkey"
)

// bootstrap writes the kubeconfig if a certificate has to be requested: it has the API server of the bootstrap
// kubeconfig and the link to the certificate that podsync will put there, as the kubelet writes it. Credentials that
// can be used stay.
func (c *Config) bootstrap() error {
	node := &c.Kubelet.Node
	if c.Kubelet.Standalone() || node.BootstrapKubeconfig == "" {
		return nil
	}
	// The store finishes a renewal that was cut off, as with the kubelet, so that the certificate is where it should be.
	log, dir := klog.Background().V(4), node.CertDir // the store logs each time that it reads
	if _, err := certificate.NewFileStoreWithLogger(log, clientcert.PairName, dir, dir, "", ""); err != nil {
		return fmt.Errorf("--cert-dir=%s: %w", node.CertDir, err)
	}
	why := unusable(node.Kubeconfig, time.Now())
	if why == nil {
		return nil
	}
	data, err := bootstrapped(node.BootstrapKubeconfig, clientcert.Path(node.CertDir))
	if errors.Is(err, fs.ErrNotExist) {
		// The file is gone after a node has joined. Its pods run on; the certificate may be replaced by hand.
		slog.Warn("kubeconfig cannot be used and there is no bootstrap kubeconfig", logkey.Path, node.Kubeconfig,
			logkey.Err, why)
		return nil
	}
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig=%s: %w", node.BootstrapKubeconfig, err)
	}
	if old, err := os.ReadFile(node.Kubeconfig); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := writeKubeconfig(node.Kubeconfig, data); err != nil {
		return fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	slog.Info("kubeconfig written for a client certificate that is requested", logkey.Path, node.Kubeconfig,
		logkey.Reason, why)
	return nil
}

// writeKubeconfig replaces a kubeconfig. A link stays, and a file that is mounted, which cannot be replaced, is written
// in place.
func writeKubeconfig(path string, data []byte) error {
	for range 10 { // links to links
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := atomicfile.Write(path, data, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true})
	if errors.Is(err, unix.EBUSY) {
		err = os.WriteFile(path, data, 0o600)
	}
	return err
}

// unusable says why a kubeconfig has no credentials that are valid now; nil if it has.
func unusable(path string, now time.Time) error {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return err
	}
	client, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return err
	}
	if err := rest.LoadTLSFiles(client); err != nil {
		return err
	}
	if _, err := rest.TLSConfigFor(client); err != nil { // such as a key that is another certificate's
		return err
	}
	if len(client.CertData) == 0 {
		if client.BearerToken == "" && client.BearerTokenFile == "" && client.ExecProvider == nil && client.Username == "" {
			return errors.New("it has no credentials")
		}
		return nil
	}
	certs, err := certutil.ParseCertsPEM(client.CertData)
	if err != nil {
		return err
	}
	for _, cert := range certs {
		if now.After(cert.NotAfter) {
			return fmt.Errorf("its certificate ended at %s", cert.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// bootstrapped is the kubeconfig of a node that gets its certificate by link, with the names that the kubelet gives.
func bootstrapped(path, link string) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, err
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, errors.New("the cluster of current-context is missing")
	}
	cluster := config.Clusters[current.Cluster].DeepCopy()
	cluster.LocationOfOrigin, cluster.Extensions = "", nil
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"default-auth": {ClientCertificate: link, ClientKey: link},
		},
		Contexts: map[string]*clientcmdapi.Context{
			"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth", Namespace: "default"},
		},
		CurrentContext: "default-context",
	})
}
