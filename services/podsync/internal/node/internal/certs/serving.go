package certs

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// gateDNSOnly lets a node without an IP address request a certificate for its names alone.
const gateDNSOnly = "AllowDNSOnlyNodeCSR"

// NewServing returns the manager of the HTTPS port's certificate, nil without serverTLSBootstrap. The certificate is
// for what addresses returns; when that changes, a new one is requested. An approver must approve the requests: the
// controller manager does not.
//
// Source: kubelet, pkg/kubelet/certificate.
func NewServing(o Options, addresses func() []corev1.NodeAddress) *Manager {
	k := o.Kubelet
	if !k.RequestsServingCertificate() {
		return nil
	}
	m := &Manager{o: o}
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_server_expiration_renew_errors", Help: "Counter of errors in renewals of the serving certificate.",
	})
	ttl := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_server_ttl_seconds",
		Help: "Seconds until the serving certificate expires, negative if it has; +Inf if there is none.",
	}, m.ttl)
	rotations := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_certificate_manager_server_rotation_seconds",
		Help: "Histogram of the number of seconds the previous certificate lived before being rotated.",
		// A minute, 1 and 4 hours, a day, a week, 1, 3 and 6 months, 1 and 4 years; the last one is as upstream has it.
		Buckets: []float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
	})
	m.rotations = rotations
	o.Metrics.MustRegister(m.failures, ttl, rotations)
	m.use = use{
		name: "serving", pairName: kubeletconfig.ServingPairName,
		cert: k.Kubelet.TLSCertFile, key: k.Kubelet.TLSPrivateKeyFile,
		signer: certificatesv1.KubeletServingSignerName, usages: certificate.DefaultKubeletServingGetUsages,
		template: func() *x509.CertificateRequest {
			names, ips := subjectAlternatives(addresses())
			if len(ips) == 0 && (len(names) == 0 || !k.FeatureEnabled(gateDNSOnly)) {
				return nil
			}
			return &x509.CertificateRequest{Subject: subject(o.NodeName), DNSNames: names, IPAddresses: ips}
		},
		renews:    true,
		expires:   "ServingCertificateExpires",
		clientset: func(*tls.Certificate) (kubernetes.Interface, error) { return m.asNode() },
	}
	return m
}

// subjectAlternatives are the names and addresses of a node that a certificate can have, each once and in order.
func subjectAlternatives(addresses []corev1.NodeAddress) (names []string, ips []net.IP) {
	for _, a := range addresses {
		ip := net.ParseIP(a.Address)
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			if ip != nil {
				ips = append(ips, ip)
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			if ip != nil && a.Type == corev1.NodeHostName {
				ips = append(ips, ip)
			} else if a.Address != "" {
				names = append(names, a.Address)
			}
		}
	}
	slices.Sort(names)
	slices.SortFunc(ips, func(a, b net.IP) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(names), slices.CompactFunc(ips, net.IP.Equal)
}
