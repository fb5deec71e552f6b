// Package nodecerts reads when the certificates end that a node works with.
package nodecerts

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Names of certificates.
const (
	// Client is the one by which the API server knows the node.
	Client = "client"
	// Serving is that of the HTTPS port.
	Serving = "serving"
)

// errMissing says that a requested certificate is not signed yet, or that its file was removed.
var errMissing = errors.New("there is none yet")

// Certificate is one of the node's.
type Certificate struct {
	Name string
	// Path is the file that it was read from.
	Path string
	// NotAfter is its end; zero if Err says why it is unknown.
	NotAfter time.Time
	Err      error
}

// Read returns the certificates that the configuration names: none of the client where it signs in otherwise, and none
// that is served where there is no port.
func Read(k *kubeletconfig.Config) []Certificate {
	var list []Certificate
	if c := client(k); c != nil {
		list = append(list, *c)
	}
	if c := serving(k); c != nil {
		list = append(list, *c)
	}
	return list
}

// client is the certificate of a kubeconfig's user, in a file or in the kubeconfig itself.
func client(k *kubeletconfig.Config) *Certificate {
	kubeconfig := k.Node.Kubeconfig
	if kubeconfig == "" {
		return nil
	}
	config, files, err := clientcert.Load(kubeconfig, k.ClientCertDir())
	if err != nil {
		return &Certificate{Name: Client, Path: kubeconfig, Err: reason(err)}
	}
	if files != nil {
		return read(Client, files.Certificate)
	}
	user, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	switch {
	case err != nil:
		return &Certificate{Name: Client, Path: kubeconfig, Err: err}
	case len(user.CertData) == 0:
		return nil
	}
	c := parse(Client, kubeconfig, user.CertData)
	return &c
}

// serving is the certificate that the node requested, or else the configured one.
func serving(k *kubeletconfig.Config) *Certificate {
	file := k.Kubelet.TLSCertFile
	if k.RequestsServingCertificate() {
		if c := read(Serving, k.ServingPair()); file == "" || !errors.Is(c.Err, errMissing) {
			return c
		}
	}
	if file == "" || !*k.Kubelet.EnableServer {
		return nil
	}
	return read(Serving, file)
}

func read(name, path string) *Certificate {
	data, err := os.ReadFile(path)
	if err != nil {
		return &Certificate{Name: name, Path: path, Err: reason(err)}
	}
	c := parse(name, path, data)
	return &c
}

// parse takes the first certificate: the others are those of its issuers.
func parse(name, path string, data []byte) Certificate {
	all, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return Certificate{Name: name, Path: path, Err: err}
	}
	return Certificate{Name: name, Path: path, NotAfter: all[0].NotAfter}
}

// reason is an error without the path, which is printed beside it.
func reason(err error) error {
	if path := new(fs.PathError); errors.As(err, &path) {
		err = path.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errMissing
	}
	return err
}
