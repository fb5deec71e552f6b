package kubeletconfig

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/services/internal/clientcert"
)

const (
	flagKubeconfig = "--kubeconfig"
	flagBootstrap  = "--bootstrap-kubeconfig"

	msgNotRenewed = "the client certificate is not renewed: the kubeconfig neither contains it nor names the link in " +
		"--cert-dir"
)

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
func checkCredentials(p *problems, c *Config) []Warning {
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
		checkKubeconfig(own, flagKubeconfig, path, interrupted(c.Node.CertDir))
	}
	if len(own.list) == 0 {
		return c.notRenewed(p)
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
	checkKubeconfig(p, flagBootstrap, bootstrap, false)
	return nil
}

// fileFault is why a file cannot be read, without its path.
func fileFault(err error) string {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// interrupted reports whether a replacement of the client certificate was cut off between its two steps. The link to
// the certificate is then missing until who replaces it starts again.
func interrupted(certDir string) bool {
	_, err := os.Lstat(clientcert.Path(certDir))
	info, next := os.Lstat(clientcert.Next(clientcert.Path(certDir)))
	return errors.Is(err, fs.ErrNotExist) && next == nil && info.Mode().Type() == fs.ModeSymlink
}

// notRenewed warns that rotateCertificates has no effect on this kubeconfig.
func (c *Config) notRenewed(p *problems) []Warning {
	if !c.Kubelet.RotateCertificates {
		return nil
	}
	config, files, err := clientcert.Load(c.Node.Kubeconfig, c.ClientCertDir())
	if err == nil {
		_, _, embedded := clientcert.Embedded(config) // the start puts it into --cert-dir
		if embedded || files != nil && files.Certificate == clientcert.Path(c.Node.CertDir) {
			return nil
		}
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

// checkKubeconfig refuses a kubeconfig that no client can be made of, as the kubelet does at its start. The client
// certificate may be absent if that is said.
func checkKubeconfig(p *problems, flag, path string, absent bool) {
	const remedy = "put a kubeconfig with the node's client credentials there"
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		p.add(flag, path, "it is no file", remedy)
		return
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		p.add(flag, path, "the file is no kubeconfig"+yamlLine(err), remedy)
		return
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		p.add(flag, path, oneLine(err), remedy)
		return
	}
	if clientcmdapi.IsConfigEmpty(config) {
		p.add(flag, path, "the file is empty", remedy)
		return
	}
	if absent {
		if config, _, err = clientcert.Load(path, ""); err != nil {
			p.add(flag, path, oneLine(err), remedy)
			return
		}
	}
	err = clientcmd.ConfirmUsable(*config, "")
	if err == nil {
		_, err = clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	}
	if err != nil {
		p.add(flag, path, "the kubeconfig cannot be used: "+oneLine(err), remedy)
	}
}

// yamlLine is where a YAML parser stopped, if the parser reports it.
func yamlLine(err error) string {
	text := oneLine(err)
	if i := strings.Index(text, "yaml: line "); i >= 0 {
		return ": " + text[i:]
	}
	return ""
}
