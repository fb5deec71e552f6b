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
	var errs []error
	if (k.TLSCertFile == "") != (k.TLSPrivateKeyFile == "") {
		errs = append(errs, fmt.Errorf("tlsCertFile is %q and tlsPrivateKeyFile is %q: set both, or none of them for a "+
			"certificate that the node signs itself", k.TLSCertFile, k.TLSPrivateKeyFile))
	}
	for _, f := range servingFiles(k) {
		if f.name != nodeapi.ClientCA && c.Kubelet.RequestsServingCertificate() && isThere(c.Kubelet.ServingPair()) {
			continue // the requested one serves in its place
		}
		file, err := os.Open(f.source)
		if err == nil {
			_, err = file.Read(make([]byte, 1))
			_ = file.Close() // it was read alone
		}
		if err != nil && !errors.Is(err, io.EOF) {
			fault, remedy := unreadable.Why(err)
			errs = append(errs, fmt.Errorf("%s is %s: %s: %s", f.field, f.source, fault, remedy))
		}
	}
	return errors.Join(errs...)
}

func isThere(pair string) bool {
	_, err := os.Stat(pair)
	return err == nil
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
	if c.Placement != Processes {
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
	if _, pending := s.pair(); s.requested != "" && !pending {
		return nil // what is wrong with it is told when it is copied
	}
	if err := os.Remove(filepath.Join(s.dir, nodeapi.ServingPair)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the copy of the serving certificate: %w", err)
	}
	return nil
}

// selfSign makes a certificate that says who the node is and that nobody vouches for, as the kubelet
// does; one that is there stays. What a start that was cut off, or a full disk, has left of one is replaced.
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
	requested, pending := s.pair()
	var configured []byte
	for _, f := range s.files {
		isPair := f.name != nodeapi.ClientCA
		if isPair && s.requested != "" && !pending {
			continue // it has served its time
		}
		data, err := os.ReadFile(f.source)
		if err != nil {
			err = fmt.Errorf("%s: %w", f.field, err)
		}
		if isPair && s.requested != "" && err == nil {
			configured = append(append(configured, data...), '\n')
			continue
		}
		put(f.name, data, err)
	}
	switch {
	case s.requested == "":
	case !pending:
		put(nodeapi.ServingPair, requested.data, requested.err)
	case len(configured) > 0:
		put(nodeapi.ServingPair, configured, nil)
	}
	return changed, errors.Join(errs...)
}

// pair reads the requested certificate and its key. It is pending while nobody has signed it. Between the two steps
// of a renewal there is no link to it, and then it is the one that comes.
func (s *serving) pair() (is struct {
	data []byte
	err  error
}, pending bool) {
	if s.requested == "" {
		return is, false
	}
	for _, path := range []string{s.requested, updated(s.requested)} {
		is.data, is.err = os.ReadFile(path)
		if !errors.Is(is.err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(is.err, fs.ErrNotExist) {
		return is, true
	}
	if is.err != nil {
		is.err = fmt.Errorf("requested serving certificate: %w", is.err)
	}
	return is, false
}

// updated is the link to the next certificate, which client-go's store makes before it replaces the current one's.
func updated(current string) string {
	return strings.TrimSuffix(current, "-current.pem") + "-updated.pem"
}
