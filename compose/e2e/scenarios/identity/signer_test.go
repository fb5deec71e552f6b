//go:build long

package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// signer answers the node's requests in place of the controller manager, with certificates of a short life.
type signer struct {
	name   string // of the signer, as requests have it
	usage  x509.ExtKeyUsage
	s      *scene.Scene
	client kubernetes.Interface
	ca     *tls.Certificate
	issuer *x509.Certificate
	life   time.Duration

	mu     sync.Mutex
	deny   int
	done   map[string]bool
	signed []string // who asked
	denied int
}

// newSigner signs client certificates until the test ends.
func newSigner(t *testing.T, s *scene.Scene, life time.Duration) *signer {
	t.Helper()
	return newSignerOf(t, s, life, certificatesv1.KubeAPIServerClientKubeletSignerName, x509.ExtKeyUsageClientAuth)
}

func newSignerOf(t *testing.T, s *scene.Scene, life time.Duration, name string, usage x509.ExtKeyUsage) *signer {
	t.Helper()
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	suspendApprover(t, client)
	pki := filepath.Join(s.Dir(), "pki")
	ca, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	g := &signer{
		name: name, usage: usage, s: s, client: client, ca: &ca, issuer: issuer, life: life, done: map[string]bool{},
	}
	old, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range old.Items {
		g.done[c.Name] = true
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); g.run(ctx, t) }()
	t.Cleanup(func() { cancel(); <-ended })
	return g
}

// suspendApprover has the controller manager approve nothing until the test ends: it signs what it approves for a year.
func suspendApprover(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	const name = "rig:node-autoapprove-certificate-rotation"
	bindings := client.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return // another signer of this test has suspended it
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		if _, err := bindings.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func (g *signer) run(ctx context.Context, t *testing.T) {
	failing := false
	for ctx.Err() == nil {
		err := g.round(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.Logf("signer: %v", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (g *signer) round(ctx context.Context) error {
	list, err := g.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		if c.Spec.SignerName == g.name && !g.done[c.Name] {
			if err := g.answer(ctx, &c); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			g.done[c.Name] = true
		}
	}
	return nil
}

func (g *signer) answer(ctx context.Context, c *certificatesv1.CertificateSigningRequest) error {
	requests := g.client.CertificatesV1().CertificateSigningRequests()
	g.mu.Lock()
	defer g.mu.Unlock()
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "of the test",
	}
	if g.deny > 0 {
		g.deny--
		g.denied++
		condition.Type = certificatesv1.CertificateDenied
	} else {
		var err error
		if c.Status.Certificate, err = g.sign(c.Spec.Request); err != nil {
			return err
		}
		// The certificate is first: the controller manager signs what is approved and has none.
		if c, err = requests.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
			return err
		}
		g.signed = append(g.signed, c.Spec.Username)
	}
	c.Status.Conditions = append(c.Status.Conditions, condition)
	_, err := requests.UpdateApproval(ctx, c.Name, c, metav1.UpdateOptions{})
	return err
}

func (g *signer) sign(request []byte) ([]byte, error) {
	block, _ := pem.Decode(request)
	if block == nil {
		return nil, errors.New("no PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: csr.Subject, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: time.Now(), NotAfter: time.Now().Add(g.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{g.usage},
	}, g.issuer, csr.PublicKey, g.ca.PrivateKey)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// denyNext denies so many requests.
func (g *signer) denyNext(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deny = n
}

// answers are who got a certificate, and how many got none.
func (g *signer) answers() (signed []string, denied int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.signed...), g.denied
}
