package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

const (
	bootstrapToken = "abcdef.0123456789abcdef"
	requestsPath   = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

// apiserver signs certificates, or denies them, for clients with the token or a certificate of its own.
type apiserver struct {
	url   string
	caPEM []byte
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey

	mu       sync.Mutex
	life     time.Duration
	deny     bool
	who      []string
	requests []certificatesv1.CertificateSigningRequest
}

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &apiserver{ca: ca, key: key}
	s := httptest.NewUnstartedServer(a)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	a.url = s.URL
	a.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return a
}

// set says how long certificates live, and whether there are any.
func (a *apiserver) set(life time.Duration, deny bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.life, a.deny = life, deny
}

// seen are the users of accepted requests, in their order.
func (a *apiserver) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.who)
}

func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := a.user(r)
	switch {
	case who == "":
		fail(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case r.Method == http.MethodPost && r.URL.Path == requestsPath:
		a.create(w, r, who)
	case r.Method == http.MethodGet && r.URL.Path == requestsPath && r.URL.Query().Get("watch") == "":
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		list := certificatesv1.CertificateSigningRequestList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		list.APIVersion, list.Kind = "certificates.k8s.io/v1", "CertificateSigningRequestList"
		for _, c := range a.requests {
			if name == "" || c.Name == name {
				list.Items = append(list.Items, c)
			}
		}
		reply(w, http.StatusOK, list)
	default: // a watch makes client-go list
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}
}

// client signs without a connection, for virtual time. It says how many requests there were.
func (a *apiserver) client(t *testing.T) (c *fake.Clientset, requests func() int) {
	t.Helper()
	var count atomic.Int64
	name := func(n int64) string { return fmt.Sprintf("csr-%d", n) }
	resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	c = fake.NewClientset()
	c.PrependReactor("create", "certificatesigningrequests",
		func(action k8stesting.Action) (bool, runtime.Object, error) {
			request := action.(k8stesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
			// The client selects nothing: a waiter for a request would see those before it.
			if n := count.Load(); n > 0 {
				if err := c.Tracker().Delete(resource, "", name(n)); err != nil {
					return true, nil, err
				}
			}
			request.Name = name(count.Add(1))
			request.UID = types.UID(request.Name)
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateApproved, Status: "True"}}
			a.mu.Lock()
			defer a.mu.Unlock()
			request.Status.Certificate = a.sign(request.Spec.Request)
			return false, nil, nil
		})
	return c, func() int { return int(count.Load()) }
}

func (a *apiserver) user(r *http.Request) string {
	if r.Header.Get("Authorization") == "Bearer "+bootstrapToken {
		return "bootstrap"
	}
	for _, c := range r.TLS.PeerCertificates {
		if c.CheckSignatureFrom(a.ca) == nil && time.Now().Before(c.NotAfter) {
			return c.Subject.CommonName
		}
	}
	return ""
}

func (a *apiserver) create(w http.ResponseWriter, r *http.Request, who string) {
	var c certificatesv1.CertificateSigningRequest
	signers := []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName}
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || !slices.Contains(signers, c.Spec.SignerName) {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.APIVersion, c.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
	c.Name = fmt.Sprintf("csr-%d", len(a.requests))
	c.UID = types.UID(c.Name)
	condition := certificatesv1.CertificateSigningRequestCondition{Status: "True"}
	condition.Type = certificatesv1.CertificateApproved
	if a.deny {
		condition.Type = certificatesv1.CertificateDenied
	} else if c.Status.Certificate = a.sign(c.Spec.Request); c.Status.Certificate == nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.Status.Conditions = append(c.Status.Conditions, condition)
	a.who = append(a.who, who)
	a.requests = append(a.requests, c)
	reply(w, http.StatusCreated, c)
}

func (a *apiserver) sign(request []byte) []byte {
	block, _ := pem.Decode(request)
	if block == nil {
		return nil
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil {
		return nil
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: csr.Subject,
		DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: time.Now(), NotAfter: time.Now().Add(a.life),
	}, a.ca, csr.PublicKey, a.key)
	if err != nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func fail(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	reply(w, int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason,
	})
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client sees it by what is missing
}
