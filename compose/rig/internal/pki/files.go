package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Input is what the files of a rig depend on.
type Input struct {
	Dir       string   // where the PEM files go
	Server    string   // the API server's URL in the kubeconfig files
	ServerIPs []net.IP // every address under which the API server is reached
	Cluster   string   // the cluster's name in the kubeconfig files
	NodeName  string
}

// Paths of the files below Input.Dir.
const (
	CA                = "ca.crt"
	CAKey             = "ca.key"
	FrontProxyCA      = "front-proxy-ca.crt"
	ServiceAccountKey = "sa.key"
	ServiceAccountPub = "sa.pub"
)

// Names of the pairs that Write makes: <name>.crt and <name>.key.
const (
	APIServer        = "apiserver"
	APIServerKubelet = "apiserver-kubelet-client" // how the API server signs in at the node
	APIServerEtcd    = "apiserver-etcd-client"
	FrontProxy       = "front-proxy-client"
	Etcd             = "etcd-server"
	MetricsServer    = "metrics-server"
)

// Names of the kubeconfig files that Write makes: <name>.kubeconfig.
const (
	Admin             = "admin"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Node              = "node"
)

// Kubeconfig returns the path of a kubeconfig file.
func Kubeconfig(dir, name string) string { return filepath.Join(dir, name+".kubeconfig") }

// Cert returns the path of a certificate.
func Cert(dir, name string) string { return filepath.Join(dir, name+".crt") }

// Key returns the path of a key.
func Key(dir, name string) string { return filepath.Join(dir, name+".key") }

// Write replaces all files.
func Write(in Input, now time.Time) error {
	if err := os.MkdirAll(in.Dir, 0o700); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	ca, err := NewAuthority(in.Cluster+"-ca", now)
	if err != nil {
		return err
	}
	// The aggregation layer trusts the names that this authority's client
	// asserts, so it may not be the authority that signs users.
	proxyCA, err := NewAuthority(in.Cluster+"-front-proxy-ca", now)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		CA:           ca.Pair().Cert,
		CAKey:        ca.Pair().Key,
		FrontProxyCA: proxyCA.Pair().Cert,
	}
	if files[ServiceAccountKey], files[ServiceAccountPub], err = signingKey(); err != nil {
		return err
	}

	loopback := net.IPv4(127, 0, 0, 1)
	for _, c := range []struct {
		name string
		by   *Authority
		req  Request
	}{
		{APIServer, ca, Request{
			CommonName: "kube-apiserver", Server: true, IPs: append([]net.IP{loopback}, in.ServerIPs...),
			DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"},
		}},
		{APIServerKubelet, ca, Request{CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"},
			Client: true}},
		{APIServerEtcd, ca, Request{CommonName: "kube-apiserver-etcd-client", Client: true}},
		{FrontProxy, proxyCA, Request{CommonName: "front-proxy-client", Client: true}},
		{Etcd, ca, Request{CommonName: "etcd", Server: true, Client: true, IPs: []net.IP{loopback},
			DNSNames: []string{"localhost"}}},
		{MetricsServer, ca, Request{CommonName: "metrics-server", Server: true,
			DNSNames: []string{"metrics-server.kube-system.svc"}}},
	} {
		pair, err := c.by.Issue(c.req, now)
		if err != nil {
			return err
		}
		files[c.name+".crt"], files[c.name+".key"] = pair.Cert, pair.Key
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(in.Dir, name), content, 0o600); err != nil {
			return fmt.Errorf("write certificates: %w", err)
		}
	}

	for name, req := range map[string]Request{
		Admin:             {CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}},
		ControllerManager: {CommonName: "system:kube-controller-manager"},
		Scheduler:         {CommonName: "system:kube-scheduler"},
		Node:              {CommonName: "system:node:" + in.NodeName, Organizations: []string{"system:nodes"}},
	} {
		req.Client = true
		pair, err := ca.Issue(req, now)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(in, name, req.CommonName, ca.Pair().Cert, pair); err != nil {
			return err
		}
	}
	return nil
}

// signingKey makes the key that signs service account tokens.
func signingKey() (key, pub []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make service account key: %w", err)
	}
	if key, err = EncodeKey(k); err != nil {
		return nil, nil, fmt.Errorf("make service account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("make service account key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

func writeKubeconfig(in Input, name, user string, ca []byte, pair Pair) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[in.Cluster] = &clientcmdapi.Cluster{Server: in.Server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts[in.Cluster] = &clientcmdapi.Context{Cluster: in.Cluster, AuthInfo: user}
	config.CurrentContext = in.Cluster
	if err := clientcmd.WriteToFile(*config, Kubeconfig(in.Dir, name)); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return nil
}
