// Package apiclient creates podsync's client of the API server from the kubelet's configuration.
//
// On a node without an API server, the client answers every request with an error at once. A request to an
// unreachable API server ends soon enough that the first request after its return is not late.
package apiclient

import (
	"context"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/tracing"
)

// How long a connection to the apiserver may take to come about, and how often it is proven to be alive.
const (
	dialTimeout = 5 * time.Second
	keepAlive   = 10 * time.Second
)

// New returns the node's client. It does not wait.
func New(k *kubeletconfig.Config, tracer *tracing.Tracer) (kubernetes.Interface, error) {
	if k.Standalone() {
		return newOffline()
	}
	config, err := restConfig(k)
	if err != nil {
		return nil, err
	}
	if tracer != nil {
		config.Wrap(tracer.Transport)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", k.Node.Kubeconfig, err)
	}
	return client, nil
}

// Dial connects to the API server, or gives up soon.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
}

func restConfig(k *kubeletconfig.Config) (*rest.Config, error) {
	// An apiserver that is cut off answers no dial: each try must end soon, or the first one after its return is late.
	config, err := clientcert.Config(k.Node.Kubeconfig, k.ClientCertDir(), Dial)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", k.Node.Kubeconfig, err)
	}
	config.UserAgent = "microlet-podsync"
	config.ContentType = k.Kubelet.ContentType
	if config.ContentType == "" {
		config.ContentType = "application/vnd.kubernetes.protobuf"
	}
	config.AcceptContentTypes = config.ContentType + ",application/json"
	config.QPS = float32(*k.Kubelet.KubeAPIQPS)
	config.Burst = int(k.Kubelet.KubeAPIBurst)
	if config.QPS > 0 {
		config.RateLimiter = newLimiter(config.QPS, config.Burst)
	}
	return config, nil
}
