package kubeletconfig

import (
	"errors"
	"io/fs"
	"os"
)

const (
	flagKubeconfig = "--kubeconfig"
	flagBootstrap  = "--bootstrap-kubeconfig"

	msgNotRenewed = "the client certificate is not renewed: the kubeconfig neither contains it nor names the link in " +
		"--cert-dir"
)

// Credentials checks what kubeconfigs contain. It is clientcert.Credentials, which brings a client of the API along.
type Credentials interface {
	// Check reports why no client can be made of a kubeconfig; its path is not in the error. While the client
	// certificate of certDir is being replaced, it may be missing. An empty certDir has none.
	Check(kubeconfig, certDir string) error
	// Renewed reports whether the client certificate of a kubeconfig is one that is renewed in certDir.
	Renewed(kubeconfig, certDir string) bool
}

// ClientCertDir is the folder in which the client certificate is renewed; empty without rotateCertificates. See
// clientcert.Load.
func (c *Config) ClientCertDir() string {
	if !c.Kubelet.RotateCertificates {
		return ""
	}
	return c.Node.CertDir
}

// checkCredentials refuses a node that has no credentials and cannot request any. It warns of a certificate that is not
// renewed.
func checkCredentials(p *problems, c *Config, credentials Credentials) []Warning {
	path, bootstrap := c.Node.Kubeconfig, c.Node.BootstrapKubeconfig
	if c.Standalone() {
		p.check(bootstrap == "", flagBootstrap, bootstrap,
			"--kubeconfig is not given", "give it, or remove both for a node without an API server")
		return nil
	}
	_, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	own := &problems{from: p.from}
	switch {
	case missing && bootstrap == "":
		own.add(flagKubeconfig, path, "the file does not exist",
			"create it, or remove the flag for a node without an API server")
	case missing:
		own.add(flagKubeconfig, path, "the file does not exist", "give --bootstrap-kubeconfig a file that exists")
	case err != nil:
		own.add(flagKubeconfig, path, "the file cannot be reached: "+err.Error(), "correct the path or its permissions")
	default:
		checkKubeconfig(own, credentials, flagKubeconfig, path, c.Node.CertDir)
	}
	if len(own.list) == 0 {
		return c.notRenewed(p, credentials)
	}
	if bootstrap == "" || err != nil && !missing {
		p.list = append(p.list, own.list...)
		return nil
	}
	if _, err := os.Stat(bootstrap); err != nil {
		p.list = append(p.list, own.list...)
		p.add(flagBootstrap, bootstrap, "the file cannot be read: "+fileFault(err),
			"put a kubeconfig with a bootstrap token there, such as one of \"kubeadm join\"")
		return nil
	}
	// The file of --kubeconfig is written when the node starts.
	checkKubeconfig(p, credentials, flagBootstrap, bootstrap, "")
	return nil
}

// fileFault is why a file cannot be read, without its path.
func fileFault(err error) string {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// notRenewed warns that rotateCertificates has no effect on this kubeconfig.
func (c *Config) notRenewed(p *problems, credentials Credentials) []Warning {
	if !c.Kubelet.RotateCertificates || credentials == nil ||
		credentials.Renewed(c.Node.Kubeconfig, c.Node.CertDir) {
		return nil
	}
	return []Warning{{
		Message: msgNotRenewed,
		Fields: []string{
			describe("rotateCertificates", true, p.from),
			describe(flagKubeconfig, c.Node.Kubeconfig, p.from),
			describe("--cert-dir", c.Node.CertDir, p.from),
		},
	}}
}

// checkKubeconfig refuses a kubeconfig that no client can be made of, as the kubelet does at its start.
func checkKubeconfig(p *problems, credentials Credentials, flag, path, certDir string) {
	const remedy = "put a kubeconfig with the node's client credentials there"
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		p.add(flag, path, "it is no file", remedy)
		return
	}
	if credentials == nil {
		return
	}
	if err := credentials.Check(path, certDir); err != nil {
		p.add(flag, path, oneLine(err), remedy)
	}
}
