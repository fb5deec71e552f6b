package clientcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// PairName begins the names of the kubelet's client certificates in --cert-dir.
const PairName = "kubelet-client"

// Path is the link to the node's client certificate and its key, which the kubelet's kubeconfig names.
// Source: client-go, util/certificate, NewFileStore.
func Path(certDir string) string { return filepath.Join(certDir, PairName+"-current.pem") }

// Next is the link to the certificate that is about to replace the one of a link, the node's as a client or its port's.
// client-go's store makes it, removes the link, and then gives the new one its name.
func Next(link string) string { return strings.TrimSuffix(link, "-current.pem") + "-updated.pem" }

// Dial connects to the API server.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Files are the files of a client certificate and its key; they may be the same.
type Files struct{ Certificate, Key string }

// Load reads a kubeconfig. It returns the files of the client certificate of its current context, nil if it names none;
// the configuration names them no longer, so that it is usable without them.
//
// If certDir is given, the client certificate is renewed in that folder. The one that is there then comes before that
// of the kubeconfig, as with the kubelet, if it is valid, of the same subject and ends no sooner.
func Load(kubeconfig, certDir string) (*clientcmdapi.Config, *Files, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, nil, err
	}
	user := currentUser(config)
	if user == nil {
		return config, nil, nil
	}
	files := filesOf(user)
	if certDir != "" && renewed(user, files, certDir) {
		files = &Files{Path(certDir), Path(certDir)}
		user.ClientCertificateData, user.ClientKeyData = nil, nil
	}
	if files != nil {
		user.ClientCertificate, user.ClientKey = "", ""
	}
	return config, files, nil
}

// currentUser returns the user of the current context, nil if there is none.
func currentUser(config *clientcmdapi.Config) *clientcmdapi.AuthInfo {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		return config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// Embedded returns the certificate and the key that a kubeconfig contains for the user of its current context; ok is
// false if it does not contain both.
func Embedded(config *clientcmdapi.Config) (cert, key []byte, ok bool) {
	user := currentUser(config)
	if user == nil || len(user.ClientCertificateData) == 0 || len(user.ClientKeyData) == 0 {
		return nil, nil, false
	}
	return user.ClientCertificateData, user.ClientKeyData, true
}

// filesOf returns the files of the user's certificate, nil if it has none: what the kubeconfig contains comes first.
func filesOf(user *clientcmdapi.AuthInfo) *Files {
	if user.ClientCertificate == "" || user.ClientKey == "" ||
		len(user.ClientCertificateData) > 0 || len(user.ClientKeyData) > 0 {
		return nil
	}
	return &Files{user.ClientCertificate, user.ClientKey}
}

// renewed reports whether the certificate of certDir is the one to use: the kubeconfig names it, by this name or
// another, or it is a later one of the same user.
func renewed(user *clientcmdapi.AuthInfo, files *Files, certDir string) bool {
	link := Path(certDir)
	if files != nil && (files.Certificate == link || sameFile(files.Certificate, link)) {
		return true
	}
	data := user.ClientCertificateData
	if files != nil {
		data, _ = os.ReadFile(files.Certificate) // one that cannot be read is not the better one
	}
	if len(data) == 0 && files == nil {
		return false // who signs in in another way has no certificate to renew
	}
	pair, err := tls.LoadX509KeyPair(link, link)
	if err != nil || pair.Leaf == nil || time.Now().After(pair.Leaf.NotAfter) {
		return false
	}
	own, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return files != nil
	}
	return bytes.Equal(own[0].RawSubject, pair.Leaf.RawSubject) && !pair.Leaf.NotAfter.Before(own[0].NotAfter)
}

// sameFile reports whether two paths lead to one file, or would: a link that is replaced may be missing for a moment.
func sameFile(a, b string) bool {
	if filepath.Base(a) != filepath.Base(b) {
		return false
	}
	first, err := os.Stat(filepath.Dir(a))
	if err != nil {
		return false
	}
	second, err := os.Stat(filepath.Dir(b))
	return err == nil && os.SameFile(first, second)
}

// Config returns a client configuration for the kubeconfig, with the certificate that Load chooses. All clients made of
// it and of its copies share connections. It does not connect.
func Config(kubeconfig, certDir string, dial Dial) (*rest.Config, error) {
	loaded, files, err := Load(kubeconfig, certDir)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Wrap(boundRetryAfter)
	config.Wrap(checkAnswers)
	config.Wrap(endRequests)
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
