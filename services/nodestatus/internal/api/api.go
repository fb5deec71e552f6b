// Package api connects nodestatus to the API server.
//
// All clients share one dialer. If a connection is dead without an error, for example after a network failure, it is
// closed after the second failed request in a row.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/outbox/delivery"
)

const (
	// failuresBeforeReset is how many requests may fail in a row before the connections are dropped;
	// the kubelet does so from the second failure on.
	failuresBeforeReset = 2
	dialTimeout         = 5 * time.Second
	keepAlive           = 10 * time.Second
)

// Options of the clients.
type Options struct {
	// Kubeconfig is the file with the node's credentials.
	Kubeconfig string
	// ContentType is contentType; Kubernetes' protobuf when empty.
	ContentType string
	// RequestTimeout bounds each request of the heartbeats.
	RequestTimeout time.Duration
	// Wrap changes the configuration before it is used; nil changes nothing.
	Wrap func(*rest.Config)
}

// Clients are nodestatus's ways to the apiserver.
type Clients struct {
	nodeName string
	core     coreclient.CoreV1Interface // with the request timeout
	watch    coreclient.CoreV1Interface // without one
	leases   coordinationclient.CoordinationV1Interface
	tokens   authenticationclient.AuthenticationV1Interface
	access   authorizationclient.AuthorizationV1Interface
	dialer   *connrotation.Dialer

	mu       sync.Mutex
	failures int
	answered time.Time
}

// New reads the kubeconfig. It does not connect.
func New(nodeName string, o Options) (*Clients, error) {
	c := &Clients{nodeName: nodeName}
	c.dialer = connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext)
	config, err := clientcert.Config(o.Kubeconfig, "", c.dialer.DialContext)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	config.UserAgent = "microlet-nodestatus"
	config.ContentType = o.ContentType
	if config.ContentType == "" {
		config.ContentType = "application/vnd.kubernetes.protobuf"
	}
	config.AcceptContentTypes = config.ContentType + ",application/json"
	config.QPS = -1 // heartbeats must not wait behind anything, and the outbox keeps its own budget
	if o.Wrap != nil {
		o.Wrap(config)
	}
	short := rest.CopyConfig(config)
	short.Timeout = o.RequestTimeout
	if c.core, err = coreclient.NewForConfig(short); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	if c.leases, err = coordinationclient.NewForConfig(short); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	if c.tokens, err = authenticationclient.NewForConfig(short); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	if c.access, err = authorizationclient.NewForConfig(short); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	if c.watch, err = coreclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.Kubeconfig, err)
	}
	return c, nil
}

// Failed notes a request that failed. An apiserver that said no has answered.
func (c *Clients) Failed(err error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		c.Succeeded()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures++; c.failures >= failuresBeforeReset {
		c.failures = 0
		c.dialer.CloseAll()
	}
}

// Succeeded notes a request that was answered.
func (c *Clients) Succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = 0
	c.answered = time.Now()
}

// Answered returns when the apiserver last answered a heartbeat; zero if it never has.
func (c *Clients) Answered() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

// Leases are the node Leases.
func (c *Clients) Leases() coordinationclient.LeaseInterface {
	return c.leases.Leases(corev1.NamespaceNodeLease)
}

// Get returns the Node.
func (c *Clients) Get(ctx context.Context) (*corev1.Node, error) {
	return c.core.Nodes().Get(ctx, c.nodeName, metav1.GetOptions{})
}

// Create creates the Node.
func (c *Clients) Create(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	return c.core.Nodes().Create(ctx, n, metav1.CreateOptions{})
}

// ReviewToken asks the apiserver which user has the token.
func (c *Clients) ReviewToken(ctx context.Context,
	r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	return c.tokens.TokenReviews().Create(ctx, r, metav1.CreateOptions{})
}

// ReviewAccess asks the apiserver whether a user may do something.
func (c *Clients) ReviewAccess(ctx context.Context,
	r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	return c.access.SubjectAccessReviews().Create(ctx, r, metav1.CreateOptions{})
}

// PatchStatus brings the Node from one state to another. The request timeout alone bounds it: the
// helper takes no context.
func (c *Clients) PatchStatus(_ context.Context, from, to *corev1.Node) (*corev1.Node, error) {
	n, _, err := nodeutil.PatchNodeStatus(c.core, types.NodeName(c.nodeName), from, to)
	return n, err
}

// Watched keeps the node's own Node.
type Watched struct {
	name      string
	store     cache.Store
	reflector *cache.Reflector
}

// Watch returns the Node as a watch delivers it, once Run runs.
func (c *Clients) Watch() *Watched {
	source := cache.NewListWatchFromClient(c.watch.RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, c.nodeName))
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	return &Watched{
		name: c.nodeName, store: store,
		reflector: cache.NewReflectorWithOptions(source, &corev1.Node{}, store, cache.ReflectorOptions{Name: "node"}),
	}
}

// Run watches until ctx ends.
func (w *Watched) Run(ctx context.Context) error {
	w.reflector.RunWithContext(ctx)
	return nil
}

// Node returns the Node as it was seen last, nil if there is none or none was seen. Do not change it.
func (w *Watched) Node() *corev1.Node {
	item, found, err := w.store.GetByKey(w.name)
	if err != nil || !found {
		return nil
	}
	n, _ := item.(*corev1.Node)
	return n
}

// Events is where the outbox delivers to.
type Events struct{ core coreclient.CoreV1Interface }

var _ delivery.Sink = Events{}

// Events returns the sink of Kubernetes Events.
func (c *Clients) Events() Events { return Events{c.core} }

// Create implements delivery.Sink.
func (e Events) Create(ctx context.Context, event *corev1.Event) (*corev1.Event, error) {
	return e.core.Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
}

// Patch implements delivery.Sink.
func (e Events) Patch(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error) {
	return e.core.Events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
}
