// Package certmanager keeps the node's client certificate valid.
//
// It requests the first one from the API server, with the bootstrap kubeconfig. After 70 to 90 % of the life of one, it
// requests the next.
//
// Its files are the kubelet's, in form and place, so that each of the two goes on with the other's.
package certmanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
)

const (
	// lookPeriod is how often the clock and the end of the certificate are looked at.
	lookPeriod = 15 * time.Second
	// clockStep is by how much the clock may differ from the time that passed. A timer does not notice a clock that is
	// set, or a machine that was suspended; what waits for it is begun anew.
	clockStep = time.Minute
	// warnShare is the share of a certificate's life in which it should have been renewed.
	warnShare = 0.1
	// reasonExpires is the reason of the Event about a certificate that is about to end.
	reasonExpires = "ClientCertificateExpires"
)

// Options of a Manager.
type Options struct {
	// Kubelet is the node's configuration: the kubeconfigs, --cert-dir, rotateCertificates.
	Kubelet *kubeletconfig.Config
	// NodeName is whose certificate is requested.
	NodeName string
	// Dial connects to the API server; nil is Go's own.
	Dial clientcert.Dial
	// Eventf records an Event about the node.
	Eventf func(kind, reason, format string, args ...any)
	Log    *slog.Logger
	// Metrics gets the kubelet's metrics of its client certificate.
	Metrics prometheus.Registerer
}

// Manager keeps the certificate valid while Run runs.
type Manager struct {
	o        Options
	failures prometheus.Counter
	current  atomic.Pointer[tls.Certificate]
	warned   *x509.Certificate

	mu     sync.Mutex
	client kubernetes.Interface // with the certificate; it reads a new one by itself
}

// New returns nil if the kubeconfig names no certificate of --cert-dir: its credentials are somebody else's to renew.
func New(o Options) (*Manager, error) {
	if o.Kubelet.Standalone() {
		return nil, nil
	}
	node := &o.Kubelet.Node
	_, files, err := clientcert.Load(node.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	if files == nil || files.Certificate != clientcert.Path(node.CertDir) {
		return nil, nil
	}
	m := &Manager{o: o}
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "Counter of certificate renewal errors.",
	})
	ttl := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "Seconds until the client certificate expires, negative if it has; +Inf if there is none.",
	}, m.ttl)
	o.Metrics.MustRegister(m.failures, ttl)
	return m, nil
}

func (m *Manager) ttl() float64 {
	c := m.current.Load()
	if c == nil || c.Leaf == nil {
		return math.Inf(1)
	}
	return math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
}

// Run keeps the certificate valid until ctx ends. What is wrong in --cert-dir is looked at again: the node's pods need
// no certificate to run.
func (m *Manager) Run(ctx context.Context) error {
	failing := false
	for ctx.Err() == nil {
		err := m.manage(ctx)
		if err != nil && !failing {
			m.o.Log.Error("client certificate cannot be managed", logkey.Dir, m.o.Kubelet.Node.CertDir, logkey.Err, err)
		}
		failing = err != nil
		if failing {
			_ = pause.For(ctx, lookPeriod) // the loop sees that ctx has ended
		}
	}
	return nil
}

// manage requests and renews until ctx ends or something has changed that client-go's manager does not notice.
func (m *Manager) manage(ctx context.Context) error {
	dir := m.o.Kubelet.Node.CertDir
	// The store logs each time that it reads.
	store, err := certificate.NewFileStoreWithLogger(klog.Background().V(4), clientcert.PairName, dir, dir, "", "")
	if err != nil {
		return err
	}
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: m.clientset,
		Template: &x509.CertificateRequest{Subject: pkix.Name{
			CommonName:   "system:node:" + m.o.NodeName,
			Organization: []string{"system:nodes"},
		}},
		SignerName:              certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:               certificate.DefaultKubeletClientGetUsages,
		CertificateStore:        store,
		CertificateRenewFailure: m.failures,
	})
	if err != nil {
		return err
	}
	defer manager.Stop()
	running := m.o.Kubelet.Kubelet.RotateCertificates || manager.Current() == nil
	if running {
		manager.Start()
	}
	began := time.Now()
	for {
		valid := manager.Current()
		m.look(valid, store)
		if running && valid != nil && !m.o.Kubelet.Kubelet.RotateCertificates {
			manager.Stop() // the first one is all that was asked for
			running = false
		}
		if pause.For(ctx, lookPeriod) != nil {
			return nil
		}
		if step := time.Now().Round(0).Sub(began.Round(0)) - time.Since(began); step.Abs() > clockStep {
			m.o.Log.Info("clock was set; the end of the client certificate is looked at again", "step", step)
			return nil
		}
		if manager.Current() == nil && usable(store) {
			m.o.Log.Info("client certificate was replaced", logkey.Path, store.CurrentPath())
			return nil
		}
	}
}

// look notes the certificate, and warns of one that should have been renewed.
func (m *Manager) look(valid *tls.Certificate, store certificate.Store) {
	if valid == nil {
		// An expired one still says since when.
		valid, _ = store.Current()
	}
	m.current.Store(valid)
	if valid == nil || valid.Leaf == nil || m.warned != nil && valid.Leaf.Equal(m.warned) {
		return
	}
	leaf := valid.Leaf
	left, life := time.Until(leaf.NotAfter), leaf.NotAfter.Sub(leaf.NotBefore)
	if left > time.Duration(float64(life)*warnShare) {
		return
	}
	m.warned = leaf
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	m.o.Log.Warn("client certificate has not been renewed", "end", end, "left", left.Round(time.Second))
	m.o.Eventf(corev1.EventTypeWarning, reasonExpires, "The client certificate has not been renewed and ends at %s", end)
}

// usable reports whether a certificate that is valid now is on the disk.
func usable(store certificate.Store) bool {
	c, err := store.Current()
	return err == nil && c.Leaf != nil && time.Now().Before(c.Leaf.NotAfter)
}

// clientset is who requests a certificate: the node with the one that it has, or else with the bootstrap kubeconfig,
// which is read each time, because a token in it may have been replaced.
func (m *Manager) clientset(current *tls.Certificate) (kubernetes.Interface, error) {
	node := &m.o.Kubelet.Node
	if current == nil {
		if node.BootstrapKubeconfig == "" {
			return nil, errors.New("there is no valid client certificate, and no --bootstrap-kubeconfig to request one with")
		}
		client, err := m.connect(node.BootstrapKubeconfig, nil)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-kubeconfig=%s: %w", node.BootstrapKubeconfig, err)
		}
		return client, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		return m.client, nil
	}
	client, err := m.connect(node.Kubeconfig, m.o.Dial)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", node.Kubeconfig, err)
	}
	m.client = client
	return client, nil
}

func (m *Manager) connect(kubeconfig string, dial clientcert.Dial) (kubernetes.Interface, error) {
	config, err := clientcert.Config(kubeconfig, dial)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "microlet-podsync"
	config.ContentType = m.o.Kubelet.Kubelet.ContentType
	return kubernetes.NewForConfig(config)
}
