package up

import (
	"fmt"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
)

// writeResolved gives each service what it reads of the kubelet's configuration, in a file that it alone may read:
// one that is not root sees no secret, and, if it acts at the apiserver, its own copy of the credentials; the HTTPS
// API gets one of its certificates. It returns the copies.
func (c *Config) writeResolved() ([]copied, error) {
	if err := c.selfSigned(); err != nil {
		return nil, err
	}
	if err := c.bootstrap(); err != nil {
		return nil, err
	}
	c.seedClientCertificate()
	var copies []copied
	for _, s := range c.Services {
		if !s.NeedsKubelet {
			continue
		}
		id, err := c.identity(s.Role)
		if err != nil {
			return nil, err
		}
		k, uid := *c.Kubelet, 0
		if id.UID != 0 {
			k, uid = *k.ForServices(), id.UID
		}
		if id.UID != 0 && id.APICredentials && k.Node.Kubeconfig != "" {
			own := credentials{
				source:    k.Node.Kubeconfig,
				dir:       c.ownFolder(s.Role),
				id:        id,
				certDir:   k.ClientCertDir(),
				requested: clientcert.Path(k.Node.CertDir),
			}
			if _, err := own.sync(); err != nil {
				return nil, fmt.Errorf("credentials of %s: %w", s.Role, err)
			}
			k.Node.Kubeconfig = own.path()
			copies = append(copies, own)
		}
		if s.Role == role.NodeAPI {
			files, err := c.newServing(&k, id)
			if err != nil {
				return nil, err
			}
			copies = append(copies, files)
		}
		if err := k.WriteResolved(c.resolvedPath(s), uid, s.KubeletFields); err != nil {
			return nil, err
		}
	}
	return copies, nil
}
