// Package certs keeps the node's certificates valid: that of the node as a client, and that of its HTTPS port.
//
// It requests the first client certificate from the API server with the bootstrap kubeconfig, and all others with the
// client certificate. After 70 to 90 % of the life of one, it requests the next.
//
// Its files are the kubelet's, in form and place, so that each of the two goes on with the other's.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	// set, or a machine that was suspended; what waits for it is restarted.
	clockStep = time.Minute
	// warnShare is the share of a certificate's life in which it should have been renewed.
	warnShare = 0.1
	// wrongClockPause is between two requests while certificates have ended, by the node's clock, when they arrive.
	// client-go's manager would request the next one within a second.
	wrongClockPause = 5 * time.Minute
)

// Options of a Manager.
type Options struct {
	// Kubelet is the node's configuration: the kubeconfigs, --cert-dir, rotateCertificates, serverTLSBootstrap.
	Kubelet *kubeletconfig.Config
	// NodeName is the node that the certificate is requested for.
	NodeName string
	// Dial connects to the API server; nil is Go's own.
	Dial clientcert.Dial
	// Eventf records an Event about the node.
	Eventf func(kind, reason, format string, args ...any)
	Log    *slog.Logger
	// Metrics gets the kubelet's metrics of the certificate.
	Metrics prometheus.Registerer
}

// Manager keeps one certificate valid while Run runs.
type Manager struct {
	o        Options
	use      use
	failures prometheus.Counter
	// rotations is nil where the kubelet has no such metric.
	rotations certificate.Histogram
	current   atomic.Pointer[tls.Certificate]
	warned    *x509.Certificate
	// paused is until when nothing is requested.
	paused atomic.Pointer[time.Time]

	mu     sync.Mutex
	client kubernetes.Interface // with the client certificate; it reads a new one by itself
}

// use is what a certificate is for, and what follows from it.
type use struct {
	// name is that of the certificate in logs and Events.
	name string
	// pairName begins the names of its files.
	pairName string
	// cert and key are files that serve until the first certificate is there; none if empty.
	cert, key string
	signer    string
	usages    func(key any) []certificatesv1.KeyUsage
	// template returns what is requested; nil while that is unknown.
	template func() *x509.CertificateRequest
	// renews is whether a certificate is followed by another.
	renews bool
	// expires is the reason of the Event about a certificate that is about to end.
	expires string
	// clientset returns the client that requests a certificate, given the one that is valid.
	clientset certificate.ClientsetFunc
}

// ttl is the value of the metric of the certificate's end.
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
			m.o.Log.Error(m.use.name+" certificate cannot be managed", logkey.Dir, m.o.Kubelet.Node.CertDir, logkey.Err, err)
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
	disk, err := certificate.NewFileStoreWithLogger(klog.Background().V(4), m.use.pairName, dir, dir,
		m.use.cert, m.use.key)
	if err != nil {
		return err
	}
	m.paused.Store(nil)
	requesting, stop := context.WithCancel(ctx)
	defer stop()
	files := &store{FileStore: disk, arrived: m.arrived}
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn:             m.use.clientset,
		GetTemplate:             func() *x509.CertificateRequest { return m.template(requesting) },
		SignerName:              m.use.signer,
		GetUsages:               m.use.usages,
		CertificateStore:        files,
		CertificateRotation:     m.rotations,
		CertificateRenewFailure: m.failures,
	})
	if err != nil {
		return err
	}
	defer manager.Stop()
	running := m.use.renews || manager.Current() == nil
	if running {
		manager.Start()
	}
	began := time.Now()
	for {
		m.look(files, manager)
		if running && manager.Current() != nil && !m.use.renews {
			stop() // the first one is all that was asked for
			manager.Stop()
			running = false
		}
		if pause.For(ctx, lookPeriod) != nil {
			return nil
		}
		if step := time.Now().Round(0).Sub(began.Round(0)) - time.Since(began); step.Abs() > clockStep {
			m.o.Log.Info("clock was set; the end of the "+m.use.name+" certificate is looked at again", "step", step)
			return nil
		}
		// What is on the disk is used at once, so its end is the one that counts.
		if _, replaced := files.onDisk(); replaced {
			m.o.Log.Info(m.use.name+" certificate was replaced", logkey.Path, files.CurrentPath())
			return nil
		}
	}
}

// template returns what is requested; client-go's manager requests nothing while that is nil. One that was stopped asks
// for it when its next renewal is due, and only then it goes.
func (m *Manager) template(requesting context.Context) *x509.CertificateRequest {
	if requesting.Err() != nil {
		return nil
	}
	if until := m.paused.Load(); until != nil && time.Now().Before(*until) {
		return nil
	}
	return m.use.template()
}

// arrived looks at a certificate that was just signed.
func (m *Manager) arrived(c *tls.Certificate) {
	if c.Leaf == nil || time.Now().Before(c.Leaf.NotAfter) {
		return
	}
	until := time.Now().Add(wrongClockPause)
	m.paused.Store(&until)
	m.o.Log.Warn("new "+m.use.name+" certificate has already ended; the clock of this node or of the signer is wrong",
		"end", c.Leaf.NotAfter.UTC().Format(time.RFC3339), "retry", wrongClockPause)
}

// look notes the certificate that is used, and warns of one that should have been renewed.
func (m *Manager) look(files *store, manager certificate.Manager) {
	used, _ := files.onDisk() // one that has ended still says since when
	if used == nil {
		used = manager.Current() // it stays in use while there is no other
	}
	m.current.Store(used)
	if used == nil || used.Leaf == nil || m.warned != nil && used.Leaf.Equal(m.warned) {
		return
	}
	leaf := used.Leaf
	left, life := time.Until(leaf.NotAfter), leaf.NotAfter.Sub(leaf.NotBefore)
	if left > time.Duration(float64(life)*warnShare) {
		return
	}
	m.warned = leaf
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	m.o.Log.Warn(m.use.name+" certificate has not been renewed", "end", end, "left", left.Round(time.Second))
	m.o.Eventf(corev1.EventTypeWarning, m.use.expires, "The %s certificate has not been renewed and ends at %s",
		m.use.name, end)
}
