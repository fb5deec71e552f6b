//go:build long

package pods

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestCertificates: a signer of the cluster's gives a pod a certificate, and a ClusterTrustBundle what it is verified
// with. What the signer denies, and what is missing, keeps a pod waiting.
func TestCertificates(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	certificates(scene.New(t))
}

// TestCertificatesOfTheKubelet holds the scenario to a live kubelet.
func TestCertificatesOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	certificates(scene.New(t))
}

func certificates(s *scene.Scene) {
	s.T.Helper()
	own := newSigner(s)
	bundle := own.publish(s)
	s.CreatePods(own.user("serves", nil, bundle.Name), own.user("denied", map[string]string{denyMe: "yes"}, bundle.Name),
		own.user("waits", nil, "example.com:"+s.Namespace+":missing"))
	s.WaitReady(scene.Patience, "serves")
	p := s.Record.View().Pod(s.Namespace, "serves")
	sees(s, p, 0, scene.Patience, "==end")
	own.verify(s, p)
	s.Wait(scene.Patience, "why one pod waits", eventWith(s, "denied", "FailedMount",
		`MountVolume.SetUp failed for volume "certificates" : `+
			`PodCertificateRequest was permanently denied: reason="Policy" message="not you"`))
	s.Wait(scene.Patience, "the signer's answer", s.HasEvent("denied", "Denied"))
	s.Wait(scene.Patience, "why another pod waits", eventWith(s, "waits", "FailedMount",
		`MountVolume.SetUp failed for volume "certificates" : while getting ClusterTrustBundle: `+
			`clustertrustbundle.certificates.k8s.io "example.com:`+s.Namespace+`:missing" not found`))

	// A further root reaches the running pod.
	bundle.Spec.TrustBundle += newSigner(s).root()
	if _, err := s.API.CertificatesV1().ClusterTrustBundles().Update(s.T.Context(), bundle,
		metav1.UpdateOptions{}); err != nil {
		s.T.Fatal(err)
	}
	sees(s, p, 0, scene.Patience, "roots: 2")
	s.DeletePods("serves", "denied", "waits")
	s.Wait(scene.Patience, "the pods' end", s.AreGone("serves", "denied", "waits"))
	s.LeavesNothing([]*corev1.Pod{p})
}

// denyMe is an annotation of a projection that has the signer deny it a certificate.
const denyMe = "example.com/deny"

// signer signs the requests for its name in a scene's namespace.
type signer struct {
	name        string
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// newSigner makes the signer's root. Its name is that of the scene.
func newSigner(s *scene.Scene) *signer {
	s.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.T.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "root of " + s.Namespace},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.T.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		s.T.Fatal(err)
	}
	return &signer{name: "example.com/" + s.Namespace, key: key, certificate: certificate}
}

func (g *signer) root() string { return pemOf(g.certificate.Raw) }

func pemOf(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// publish makes the bundle of the signer's root, and begins to sign.
func (g *signer) publish(s *scene.Scene) *certificatesv1.ClusterTrustBundle {
	s.T.Helper()
	bundles := s.API.CertificatesV1().ClusterTrustBundles()
	made, err := bundles.Create(s.T.Context(), &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "example.com:" + s.Namespace + ":roots"},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: g.name, TrustBundle: g.root()},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	requests, err := s.API.CertificatesV1().PodCertificateRequests(s.Namespace).Watch(s.T.Context(), metav1.ListOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range requests.ResultChan() {
			if o, ok := e.Object.(*certificatesv1.PodCertificateRequest); ok && len(o.Status.Conditions) == 0 {
				if err := g.answer(s, o); err != nil && !errors.Is(err, context.Canceled) {
					s.T.Errorf("the signer: %v", err)
				}
			}
		}
	}()
	s.T.Cleanup(func() {
		requests.Stop()
		<-done
		if err := bundles.Delete(context.WithoutCancel(s.T.Context()), made.Name, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	return made
}

// answer issues a certificate, or denies it.
func (g *signer) answer(s *scene.Scene, o *certificatesv1.PodCertificateRequest) error {
	o = o.DeepCopy()
	condition := metav1.Condition{
		Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "Policy",
		Message: "not you", LastTransitionTime: metav1.Now(),
	}
	if o.Spec.UnverifiedUserAnnotations[denyMe] == "" {
		proof, err := x509.ParseCertificateRequest(o.Spec.StubPKCS10Request)
		if err != nil {
			return err
		}
		begin := time.Now().Truncate(time.Second)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(begin.UnixNano()), Subject: pkix.Name{CommonName: string(o.Spec.PodUID)},
			NotBefore: begin, NotAfter: begin.Add(2 * time.Hour),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, g.certificate, proof.PublicKey, g.key)
		if err != nil {
			return err
		}
		at := func(t time.Time) *metav1.Time { return new(metav1.NewTime(t)) }
		o.Status.CertificateChain = pemOf(der)
		o.Status.NotBefore, o.Status.NotAfter = at(begin), at(template.NotAfter)
		o.Status.BeginRefreshAt = at(begin.Add(time.Hour))
		condition.Type, condition.Reason, condition.Message =
			certificatesv1.PodCertificateRequestConditionTypeIssued, "Signed", "yours"
	}
	o.Status.Conditions = []metav1.Condition{condition}
	_, err := s.API.CertificatesV1().PodCertificateRequests(s.Namespace).UpdateStatus(s.T.Context(), o,
		metav1.UpdateOptions{})
	return err
}

// user is a pod with a certificate and a bundle. It prints both.
func (g *signer) user(name string, annotations map[string]string, bundle string) *corev1.Pod {
	p := scene.ScriptPod(name, `cd /c; cat bundle.pem; stat -L -c 'mode: %n %a %u %g' *.pem; echo ==end
while sleep 0.2; do echo roots: $(grep -c BEGIN roots.pem); done`)
	user, group := int64(1000), int64(2000)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, FSGroup: &group}
	p.Spec.Volumes = []corev1.Volume{{Name: "certificates", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{PodCertificate: &corev1.PodCertificateProjection{
				SignerName: g.name, KeyType: "ED25519", CredentialBundlePath: "bundle.pem", KeyPath: "key.pem",
				CertificateChainPath: "chain.pem", UserAnnotations: annotations,
			}},
			{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &bundle, Path: "roots.pem"}},
			{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: &g.name, Path: "all.pem",
				LabelSelector: &metav1.LabelSelector{}}},
		}},
	}}}
	main := &p.Spec.Containers[0]
	main.VolumeMounts = []corev1.VolumeMount{{Name: "certificates", MountPath: "/c", ReadOnly: true}}
	return p
}

// verify looks at what the pod has printed.
func (g *signer) verify(s *scene.Scene, p *corev1.Pod) {
	s.T.Helper()
	text, err := s.ContainerLog(p, "main", 0)
	if err != nil {
		s.T.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(text), []byte(text))
	if err != nil {
		s.T.Fatalf("the pod's key and certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(g.certificate)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots})
	if err != nil || pair.Leaf.Subject.CommonName != string(p.UID) {
		s.T.Errorf("the pod's certificate is for %s: %v", pair.Leaf.Subject, err)
	}
	for _, name := range []string{"all.pem", "bundle.pem", "chain.pem", "key.pem", "roots.pem"} {
		if want := "mode: " + name + " 640 1000 2000\n"; !strings.Contains(text, want) {
			s.T.Errorf("no %q in what the pod sees:\n%s", want, text)
		}
	}
}
