package clientcert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
)

// Cluster is the API server of a kubeconfig's current context.
type Cluster struct {
	// Server is its URL.
	Server string
	// CAs are who may have signed its certificate; none for those of the host.
	CAs []*x509.Certificate
}

// ReadCluster reads the API server of a kubeconfig.
func ReadCluster(kubeconfig string) (Cluster, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return Cluster{}, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return Cluster{}, err
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return Cluster{}, errors.New("the cluster of current-context is missing")
	}
	is := config.Clusters[current.Cluster]
	c, data := Cluster{Server: is.Server}, is.CertificateAuthorityData
	if len(data) == 0 && is.CertificateAuthority != "" {
		if data, err = os.ReadFile(is.CertificateAuthority); err != nil {
			return Cluster{}, fmt.Errorf("certificate authority: %w", err)
		}
	}
	if len(data) > 0 {
		if c.CAs, err = certutil.ParseCertsPEM(data); err != nil {
			return Cluster{}, fmt.Errorf("certificate authority: %w", err)
		}
	}
	return c, nil
}

// Shares reports whether a server may have a certificate that both trust.
func (c Cluster) Shares(with Cluster) bool {
	if len(c.CAs) == 0 || len(with.CAs) == 0 {
		return len(c.CAs) == len(with.CAs)
	}
	return slices.ContainsFunc(c.CAs, func(ca *x509.Certificate) bool {
		return slices.ContainsFunc(with.CAs, ca.Equal)
	})
}
