package up

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	certutil "k8s.io/client-go/util/cert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/unreadable"
	"github.com/microlet/microlet/services/nodeapi"
)

// serving copies the files of the HTTPS port to where nodeapi alone may read them. The originals are
// root's: the operator's, or those that the kubelet makes for itself, under the same names.
type serving struct {
	dir   string
	id    role.Identity
	files []servingFile
	// requested is the certificate that podsync requests, with its key; empty if it does not. It replaces the
	// configured one once it is there.
	requested string
}

type servingFile struct{ field, source, name string }

// validateServing says which files of the HTTPS port cannot be had.
func (c *Config) validateServing() error {
	k := &c.Kubelet.Kubelet
	alone := map[string]string{} // what is set, by what is not
	switch {
	case k.TLSCertFile == "" && k.TLSPrivateKeyFile != "":
		alone["tlsPrivateKeyFile"] = "tlsCertFile"
	case k.TLSCertFile != "" && k.TLSPrivateKeyFile == "":
		alone["tlsCertFile"] = "tlsPrivateKeyFile"
	}
	var errs []error
	for _, f := range servingFiles(k) {
		var err error
		if f.name == nodeapi.ClientCA || !c.Kubelet.RequestsServingCertificate() || !isThere(c.Kubelet.ServingPair()) {
			err = readable(f.source) // otherwise the requested one serves in its place
		}
		p := kubeletconfig.Problem{Field: f.field, Value: f.source, Source: c.Kubelet.Provenance[f.field]}
		if err != nil {
			p.Detail, p.Remedy = unreadable.Why(err)
		}
		if other := alone[f.field]; other != "" {
			const remedy = "set both, or none of them for a certificate that the node signs itself"
			p.Detail, p.Remedy = strings.TrimPrefix(p.Detail+", and "+other+" is not set", ", and "), remedy
		}
		if p.Detail != "" {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

// readable says why a file cannot be read.
func readable(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// isThere reports whether a requested certificate was signed, be it readable or not.
func isThere(requested string) bool {
	_, err := readRequested(requested)
	return !errors.Is(err, fs.ErrNotExist)
}

// servingFiles are the configured files of the HTTPS port.
func servingFiles(k *kubeletv1beta1.KubeletConfiguration) []servingFile {
	var files []servingFile
	for _, f := range []servingFile{
		{"tlsCertFile", k.TLSCertFile, nodeapi.ServingCertificate},
		{"tlsPrivateKeyFile", k.TLSPrivateKeyFile, nodeapi.ServingKey},
		{"authentication.x509.clientCAFile", k.Authentication.X509.ClientCAFile, nodeapi.ClientCA},
	} {
		if f.source != "" {
			files = append(files, f)
		}
	}
	return files
}

// selfSigned lets the configuration name the node's own certificate if it names none and podsync requests none. It
// makes the certificate if there is none yet. All services of the single placement read this configuration.
func (c *Config) selfSigned() error {
	k, node := &c.Kubelet.Kubelet, &c.Kubelet.Node
	if k.ServerTLSBootstrap = c.Kubelet.RequestsServingCertificate(); k.ServerTLSBootstrap {
		return nil
	}
	if k.TLSCertFile != "" || k.TLSPrivateKeyFile != "" || !*k.EnableServer {
		return nil
	}
	k.TLSCertFile = filepath.Join(node.CertDir, "kubelet.crt")
	k.TLSPrivateKeyFile = filepath.Join(node.CertDir, "kubelet.key")
	if err := selfSign(k.TLSCertFile, k.TLSPrivateKeyFile, c.Service.NodeName); err != nil {
		return fmt.Errorf("serving certificate in --cert-dir=%s: %w", node.CertDir, err)
	}
	return nil
}

// newServing makes the copies that nodeapi reads.
func (c *Config) newServing(k *kubeletconfig.Config, id role.Identity) (*serving, error) {
	s := &serving{dir: c.ownFolder(id.Role), id: id}
	if id.UID == 0 {
		return s, nil // root reads the originals
	}
	s.files = servingFiles(&k.Kubelet)
	if k.Kubelet.ServerTLSBootstrap {
		s.requested = k.ServingPair()
	}
	if err := s.forget(); err != nil {
		return nil, err
	}
	_, err := s.sync()
	return s, err
}

// forget removes the copy of a requested certificate that is not there any more: it may be that of another name or
// cluster.
func (s *serving) forget() error {
	if s.requested != "" && isThere(s.requested) {
		return nil // what is wrong with it is reported when it is copied
	}
	if err := os.Remove(filepath.Join(s.dir, nodeapi.ServingPair)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the copy of the serving certificate: %w", err)
	}
	return nil
}

// selfSign makes a self-signed certificate for the node, as the kubelet does. An existing one stays. What a start that
// was cut off, or a full disk, has left of one is replaced.
func selfSign(cert, key, host string) error {
	if _, err := tls.LoadX509KeyPair(cert, key); err == nil {
		return nil
	}
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(key), 0o755), os.MkdirAll(filepath.Dir(cert), 0o755)); err != nil {
		return err
	}
	return errors.Join(
		atomicfile.Write(key, keyPEM, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true}),
		atomicfile.Write(cert, certPEM, atomicfile.Attributes{Mode: 0o644, UID: -1, GID: -1, Durable: true}))
}

// name of what is copied, for logs.
func (s *serving) name() string { return "files of the HTTPS port" }

// sync copies what differs. What is wrong with one file keeps no other from its copy.
func (s *serving) sync() (changed bool, err error) {
	var errs []error
	put := func(name string, data []byte, err error) {
		if err == nil {
			var wrote bool
			wrote, err = copyFile(filepath.Join(s.dir, name), data, s.id)
			changed = changed || wrote
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	replaced := false // the configured pair has served its time
	if s.requested != "" {
		data, err := readRequested(s.requested)
		if replaced = !errors.Is(err, fs.ErrNotExist); replaced {
			if err != nil {
				err = fmt.Errorf("requested serving certificate: %w", err)
			}
			put(nodeapi.ServingPair, data, err)
		}
	}
	var configured []byte
	whole := true // of the configured pair both files can be read
	for _, f := range s.files {
		isPair := f.name != nodeapi.ClientCA
		if isPair && replaced {
			continue
		}
		data, err := os.ReadFile(f.source)
		if err != nil {
			err = fmt.Errorf("%s: %w", f.field, err)
			whole = whole && !isPair
		}
		if isPair && s.requested != "" && err == nil {
			configured = append(append(configured, data...), '\n')
			continue
		}
		put(f.name, data, err)
	}
	if whole && len(configured) > 0 {
		put(nodeapi.ServingPair, configured, nil)
	}
	return changed, errors.Join(errs...)
}
