package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/node/internal/apiclient"
	certmanager "github.com/microlet/microlet/services/podsync/internal/node/internal/certs"
)

// Client connects podsync to the API server as this node, with certificates that stay valid.
type Client struct {
	kubernetes.Interface
	options certmanager.Options
	// certs is nil if another program renews the client certificate.
	certs *certmanager.Manager
}

// NewClient returns the client of a node. Events about its certificates go to a recorder.
func NewClient(s *service.Service, k *kubeletconfig.Config, node string, events record.EventRecorder) (*Client, error) {
	client, err := apiclient.New(k, s.Tracer)
	if err != nil {
		return nil, err
	}
	options := certmanager.Options{
		Kubelet: k, NodeName: node, Dial: apiclient.Dial, Log: s.Log, Metrics: s.Metrics,
		Eventf: func(kind, reason, format string, args ...any) {
			events.Eventf(eventref.Node(node), kind, reason, format, args...)
		},
	}
	certs, err := certmanager.NewClient(options)
	if err != nil {
		return nil, err
	}
	return &Client{client, options, certs}, nil
}

// Start has s keep the certificates valid: the client's, and that of the HTTPS port, which is for the addresses of the
// Node.
func (c *Client) Start(s *service.Service, node func() *v1.Node) {
	if c.certs != nil {
		s.Go("client certificate", c.certs.Run)
	}
	serving := certmanager.NewServing(c.options, func() []v1.NodeAddress { return node().Status.Addresses })
	if serving != nil {
		s.Go("serving certificate", serving.Run)
	}
}
