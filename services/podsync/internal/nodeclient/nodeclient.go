// Package nodeclient connects podsync to the API server as this node, with a certificate that stays valid.
package nodeclient

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/apiclient"
	"github.com/microlet/microlet/services/podsync/internal/certmanager"
)

// Client is the node's.
type Client struct {
	kubernetes.Interface
	// certs is nil where the client certificate is somebody else's to renew.
	certs *certmanager.Manager
}

// New returns the client of a node. Events about its certificate go to a recorder.
func New(s *service.Service, k *kubeletconfig.Config, node string, events record.EventRecorder) (*Client, error) {
	client, err := apiclient.New(k)
	if err != nil {
		return nil, err
	}
	certs, err := certmanager.New(certmanager.Options{
		Kubelet: k, NodeName: node, Dial: apiclient.Dial, Log: s.Log, Metrics: s.Metrics,
		Eventf: func(kind, reason, format string, args ...any) {
			events.Eventf(eventref.Node(node), kind, reason, format, args...)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Client{client, certs}, nil
}

// Start has s keep the certificate valid.
func (c *Client) Start(s *service.Service) {
	if c.certs != nil {
		s.Go("client certificate", c.certs.Run)
	}
}
