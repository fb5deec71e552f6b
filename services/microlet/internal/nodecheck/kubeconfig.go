package nodecheck

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// soon is before which end a certificate is worth a warning.
const soon = 30 * 24 * time.Hour

// kubeconfig checks the credentials, their end, and whether the API server takes them.
func (h Host) kubeconfig(ctx context.Context, r *report, k *kubeletconfig.Config) {
	h.servingCertificate(r, k)
	if k.Standalone() {
		r.ok("API server", "none: without --kubeconfig the node is standalone")
		return
	}
	if h.refuses("--kubeconfig", "--bootstrap-kubeconfig") {
		return
	}
	file := k.Node.Kubeconfig
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil && k.Node.BootstrapKubeconfig != "" {
		r.warn("kubeconfig", file+" cannot be used",
			"nothing, if its certificate is to be requested with "+k.Node.BootstrapKubeconfig+"; correct the file otherwise")
		return
	}
	if err != nil {
		r.failed("kubeconfig", file+" cannot be used", "correct the file")
		return
	}
	h.clientCertificate(r, config)
	h.reach(ctx, r, k, config)
}

// servingCertificate checks that of the HTTPS port: the one that the node requested, or else the configured one.
func (h Host) servingCertificate(r *report, k *kubeletconfig.Config) {
	file := k.Kubelet.TLSCertFile
	if k.RequestsServingCertificate() {
		data, err := os.ReadFile(k.ServingPair())
		if err == nil {
			h.certificate(r, "serving certificate", k.ServingPair(), data)
			return
		}
		if file == "" {
			r.warn("serving certificate", "none yet: it is requested when the node runs",
				"approve the node's certificate signing request: kubectl certificate approve")
			return
		}
	}
	if file == "" || h.refuses("tlsCertFile") {
		return // the node signs its own, or cannot use the file
	}
	data, err := os.ReadFile(file)
	if err != nil {
		r.failed("serving certificate", "tlsCertFile cannot be read: "+file,
			"put the certificate there, or remove tlsCertFile")
		return
	}
	h.certificate(r, "serving certificate", file, data)
}

func (h Host) clientCertificate(r *report, config *rest.Config) {
	data, name := config.CertData, "the kubeconfig"
	if len(data) == 0 && config.CertFile != "" {
		name = config.CertFile
		var err error
		if data, err = os.ReadFile(name); err != nil {
			r.failed("client certificate", name+" cannot be read", "put the node's client certificate there")
			return
		}
	}
	if len(data) > 0 {
		h.certificate(r, "client certificate", name, data)
	}
}

// certificate checks when a certificate ends.
func (h Host) certificate(r *report, check, name string, data []byte) {
	var block *pem.Block
	for rest := data; ; {
		if block, rest = pem.Decode(rest); block == nil {
			r.failed(check, name+" holds no certificate", "put one there, in PEM")
			return
		}
		if block.Type == "CERTIFICATE" {
			break
		}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		r.failed(check, name+" holds a certificate that cannot be read", "replace it")
		return
	}
	end := cert.NotAfter.UTC().Format(time.RFC3339)
	const renew = "renew it, or see docs/identity.md on when microlet does"
	switch left := cert.NotAfter.Sub(h.Now); {
	case left <= 0:
		r.failed(check, fmt.Sprintf("%s ended at %s", subjectOf(cert), end), renew)
	case h.Now.Before(cert.NotBefore):
		r.failed(check, fmt.Sprintf("%s begins at %s", subjectOf(cert), cert.NotBefore.UTC().Format(time.RFC3339)),
			"correct this machine's clock")
	case left < soon:
		r.warn(check, fmt.Sprintf("%s ends at %s, in %d days", subjectOf(cert), end, int(left.Hours()/24)), renew)
	default:
		r.ok(check, "%s is valid until %s", subjectOf(cert), end)
	}
}

func subjectOf(cert *x509.Certificate) string { return "that of " + cert.Subject.CommonName }

// reach asks the API server for the Node.
func (h Host) reach(ctx context.Context, r *report, k *kubeletconfig.Config, config *rest.Config) {
	name, err := k.NodeName()
	if err != nil {
		return // the configuration's own error says so
	}
	config.Timeout = timeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.failed("API server", "no client can be made of the kubeconfig", "correct its certificates and keys")
		return
	}
	server := strings.TrimSuffix(config.Host, "/")
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/nodes/"+url.PathEscape(name), nil)
	if err != nil {
		r.failed("API server", "the server of the kubeconfig is no URL: "+server, "correct clusters[].cluster.server")
		return
	}
	response, err := client.Do(request)
	if plugin := config.ExecProvider; err != nil && plugin != nil && strings.Contains(err.Error(), credentialsFailed) {
		_, why, _ := strings.Cut(reason(err), credentialsFailed)
		why, _, _ = strings.Cut(why, "\n") // what follows is for programmers
		r.failed("API server", fmt.Sprintf("the credential plugin %s failed: %s", plugin.Command, why),
			fmt.Sprintf("run it by hand as root; check its path, args and env below users[].user.exec of %s", k.Node.Kubeconfig))
		return
	}
	if err != nil {
		r.failed("API server", server+" cannot be reached: "+reason(err), "check its address, the network and the CA")
		return
	}
	defer func() { _ = response.Body.Close() }() // the status code is all that is read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	switch response.StatusCode {
	case http.StatusOK:
		r.ok("API server", "%s knows node %s", server, name)
		h.pods(ctx, r, client, server, name)
	case http.StatusNotFound:
		r.ok("API server", "%s takes the credentials; node %s is not registered yet", server, name)
	case http.StatusUnauthorized:
		r.failed("API server", server+" does not accept the credentials", "renew the client certificate or token")
	case http.StatusForbidden:
		r.failed("API server", fmt.Sprintf("%s does not let these credentials read node %s", server, name),
			"use credentials of system:node:"+name+", or correct --hostname-override")
	default:
		r.warn("API server", server+" answers "+response.Status, "see the API server's log")
	}
}

// credentialsFailed is how client-go begins what it says of a credential plugin.
const credentialsFailed = "getting credentials: "

// reason is why a request failed, without its URL.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, `": `); i >= 0 {
		text = text[i+3:]
	}
	return text
}
