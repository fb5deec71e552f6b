package podcertificate

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
)

// create makes a key pair, and requests its certificate.
func (c *Certificates) create(ctx context.Context, p *v1.Pod, source *v1.PodCertificateProjection) (*pending, error) {
	node := c.o.Node()
	if node.UID == "" {
		return nil, errors.New("while getting node object from local cache: the API server has not sent it yet")
	}
	account, err := objects.AskAgain(ctx, objects.Lags, func() (*v1.ServiceAccount, error) {
		return c.o.Client.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, p.Spec.ServiceAccountName, metav1.GetOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("while fetching service account: %w", err)
	}
	key, proof, err := c.newKey(ctx, p, source.KeyType)
	if err != nil {
		return nil, fmt.Errorf("while generating keypair: %w", err)
	}
	request := requestFor(p, source)
	request.Spec.ServiceAccountUID = account.UID
	request.Spec.NodeName, request.Spec.NodeUID = types.NodeName(c.o.NodeName), node.UID
	request.Spec.StubPKCS10Request = proof
	// Admission answers with an internal error while it does not know the pod, its account or the node yet.
	lags := func(err error) bool { return objects.Lags(err) || apierrors.IsInternalError(err) }
	made, err := objects.AskAgain(ctx, lags, func() (*certificatesv1.PodCertificateRequest, error) {
		return c.o.Client.CertificatesV1().PodCertificateRequests(p.Namespace).Create(ctx, request, metav1.CreateOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("while creating PodCertificateRequest: %w", err)
	}
	return &pending{
		name: made.Name, key: key, abandon: time.Now().Add(abandonAfter + mathrand.N(jitter)),
	}, nil
}

// requestFor is what the pod and its projection say.
func requestFor(p *v1.Pod, source *v1.PodCertificateProjection) *certificatesv1.PodCertificateRequest {
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: source.SignerName, PodName: p.Name, PodUID: p.UID,
			ServiceAccountName: p.Spec.ServiceAccountName, MaxExpirationSeconds: source.MaxExpirationSeconds,
			UnverifiedUserAnnotations: source.UserAnnotations,
		},
	}
}

// newKey makes the keys of pods one after the other, in turns of the namespaces. A large RSA key takes a processor for
// seconds, and a pod may want hundreds of them.
func (c *Certificates) newKey(ctx context.Context, p *v1.Pod, kind string) (key, proof []byte, err error) {
	release, err := c.making.Take(ctx, p.Namespace)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	return c.generate(kind)
}

// newKey makes a key pair: the private key as PEM, and a request that is signed with it, which only proves that its
// maker has the key.
func newKey(kind string) (key, proof []byte, err error) {
	private, err := generate(kind)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("while marshaling key to PKCS#8: %w", err)
	}
	proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("while generating stub PKCS#10 request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, nil
}

func generate(kind string) (crypto.PrivateKey, error) {
	switch kind {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, private, err := ed25519.GenerateKey(rand.Reader)
		return private, err
	}
	return nil, fmt.Errorf("unknown key type %q", kind)
}

// onlyCertificates returns the certificates of a chain without what else is in the text.
func onlyCertificates(chain []byte) []byte {
	var text []byte
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	return text
}
