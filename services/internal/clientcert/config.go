package clientcert

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// PairName begins the names of the kubelet's client certificates in --cert-dir.
const PairName = "kubelet-client"

// Path is the link to the node's client certificate and its key, which the kubelet's kubeconfig names.
// Source: client-go, util/certificate, NewFileStore.
func Path(certDir string) string { return filepath.Join(certDir, PairName+"-current.pem") }

// Dial connects to the API server.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Files are the files of a client certificate and its key; they may be the same.
type Files struct{ Certificate, Key string }

// Load reads a kubeconfig. It returns the files of the client certificate of its current context, nil if it names none;
// the configuration names them no longer, so that it is usable without them.
func Load(kubeconfig string) (*clientcmdapi.Config, *Files, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, nil, err
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return config, nil, nil
	}
	user := config.AuthInfos[current.AuthInfo]
	if user == nil || user.ClientCertificate == "" || user.ClientKey == "" ||
		len(user.ClientCertificateData) > 0 || len(user.ClientKeyData) > 0 {
		return config, nil, nil
	}
	files := &Files{user.ClientCertificate, user.ClientKey}
	user.ClientCertificate, user.ClientKey = "", ""
	return config, files, nil
}

// Config returns a client configuration for the kubeconfig. All clients made of it and of its copies share connections.
// It does not connect.
func Config(kubeconfig string, dial Dial) (*rest.Config, error) {
	loaded, files, err := Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	if files == nil {
		config.Dial = dial
		return config, nil
	}
	t, err := newTransport(config, *files, dial)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	// A custom transport excludes TLS options: it has them already.
	config.Transport = t
	config.TLSClientConfig = rest.TLSClientConfig{}
	config.Proxy = nil
	return config, nil
}
