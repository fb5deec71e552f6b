package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/logkey"
)

// copied are files of root's that one service has its own copy of.
type copied interface {
	// sync copies what differs.
	sync() (changed bool, err error)
	name() string
}

// keep keeps a copy like its source until the context ends. A source that cannot be read leaves the
// copy as it is.
func keep(ctx context.Context, c copied, log *slog.Logger) error {
	t := time.NewTicker(credentialsPeriod)
	defer t.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		changed, err := c.sync()
		if err != nil && !failing {
			log.Error("files not copied; the old copy stays", "files", c.name(), logkey.Err, err)
		}
		failing = err != nil
		if changed {
			log.Info("files copied", "files", c.name())
		}
	}
}

// credentialsPeriod is how often the source is compared with the copy. Its certificate is replaced
// long before it expires, so a minute would do; reading two small files costs nothing.
const credentialsPeriod = 10 * time.Second

// credentials copy a kubeconfig, and the files that it names, to where one service alone may read
// them. The original is root's. Files stay files, because client-go reads a certificate file again
// when it is replaced.
type credentials struct {
	source string
	dir    string
	id     role.Identity
	// certDir is where the client certificate is renewed; see clientcert.Load.
	certDir string
	// requested is the file of a client certificate that may not exist yet: it is copied as soon as it does.
	requested string
}

// path is the copy.
func (c credentials) path() string { return filepath.Join(c.dir, "kubeconfig") }

// name of what is copied, for logs.
func (c credentials) name() string { return "credentials of " + string(c.id.Role) }

// sync copies what differs.
func (c credentials) sync() (changed bool, err error) {
	config, certificate, err := clientcert.Load(c.source, c.certDir)
	if err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	// Other users and clusters in the file are none of the service's business.
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return false, fmt.Errorf("kubeconfig %s: %w", c.source, err)
	}
	if certificate != nil {
		for _, user := range config.AuthInfos { // the one that is left
			user.ClientCertificate, user.ClientKey = certificate.Certificate, certificate.Key
		}
	}
	files, err := c.adopt(config)
	if err != nil {
		return false, fmt.Errorf("kubeconfig %s: %w", c.source, err)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return false, fmt.Errorf("kubeconfig %s: %w", c.source, err)
	}
	// The kubeconfig is last: what it names is there then.
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] == nil {
			if err := c.remove(name); err != nil {
				return changed, err
			}
			continue
		}
		wrote, err := copyFile(filepath.Join(c.dir, name), files[name], c.id)
		if err != nil {
			return changed, err
		}
		changed = changed || wrote
	}
	wrote, err := copyFile(c.path(), data, c.id)
	return changed || wrote, err
}

// read reads a file. It returns nil for the requested certificate until it is signed.
func (c credentials) read(path string) ([]byte, error) {
	if path != c.requested {
		return os.ReadFile(path)
	}
	data, err := readRequested(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// readRequested reads a certificate that podsync requests, with its key. It does not exist until it is signed. Between
// the two steps of a renewal there is no link to it, and then it is the one that comes.
func readRequested(link string) ([]byte, error) {
	data, err := os.ReadFile(link)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile(clientcert.Next(link))
	}
	return data, err
}

// remove removes the copy of a certificate that is not there any more: it may be that of another node or cluster.
func (c credentials) remove(name string) error {
	if err := os.Remove(filepath.Join(c.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the copy of the client certificate: %w", err)
	}
	return nil
}

// adopt reads the files that the kubeconfig names and makes it name their copies.
func (c credentials) adopt(config *clientcmdapi.Config) (map[string][]byte, error) {
	files, read := map[string][]byte{}, map[string][]byte{}
	take := func(path *string, name string) error {
		if *path == "" {
			return nil
		}
		// The certificate and its key are one file, which may be replaced at any time: it is read once.
		data, ok := read[*path]
		if !ok {
			var err error
			if data, err = c.read(*path); err != nil {
				return err
			}
			read[*path] = data
		}
		files[name] = data
		*path = filepath.Join(c.dir, name)
		return nil
	}
	for i, name := range slices.Sorted(maps.Keys(config.Clusters)) {
		path := &config.Clusters[name].CertificateAuthority
		if err := take(path, fmt.Sprintf("cluster-%d-ca.crt", i)); err != nil {
			return nil, err
		}
	}
	for i, name := range slices.Sorted(maps.Keys(config.AuthInfos)) {
		user := config.AuthInfos[name]
		for _, f := range []struct {
			path *string
			name string
		}{
			{&user.ClientCertificate, "client.crt"},
			{&user.ClientKey, "client.key"},
			{&user.TokenFile, "token"},
		} {
			if err := take(f.path, fmt.Sprintf("user-%d-%s", i, f.name)); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}
