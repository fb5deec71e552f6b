//go:build long

package outages

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// expiry is how long the node's short certificate is good for: long enough for a start on a busy machine.
const expiry = 90 * time.Second

// TestCertificateExpires: the node's client certificate expires under it. Pods run on and their containers are
// restarted; when the files are renewed, all that came up meanwhile is reported.
func TestCertificateExpires(t *testing.T) {
	s := scene.New(t)
	c := newCredentials(s)
	c.issue(expiry)
	until := time.Now().Add(expiry)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, "--kubeconfig="+c.kubeconfig)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	s.CreatePods(scene.ScriptPod("ends", scene.Forever))
	s.WaitReady(scene.Patience, "ends")
	w := s.Witness("ends")
	if left := time.Until(until); left < time.Second {
		t.Fatalf("the start took all of the certificate's life and %s more", -left)
	}
	time.Sleep(time.Until(until.Add(time.Second)))

	mark := s.Record.Mark()
	s.EndContainer("ends")
	scene.Await(t, scene.Patience, "the restart of a container", func() error { return s.RunsAttempt("ends", 1) })
	s.CreatePods(scene.OnNode(scene.PausePod("comes"), s.NodeName()))
	time.Sleep(15 * time.Second)
	s.SyncRecord()
	for _, e := range s.Record.Since(mark) {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Name == "ends" && len(p.Status.ContainerStatuses) > 0 &&
			p.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Fatal("the node was heard, so its certificate is still good and this test shows nothing")
		}
	}
	s.WaitHealthy(t, scene.Patience)

	c.issue(time.Hour)
	renewed := time.Now()
	s.Wait(scene.Patience, "the status of the time without a certificate", s.Restarted("ends", 1))
	t.Logf("the status of that time was delivered %s after the certificate was renewed",
		scene.Milliseconds(time.Since(renewed)))
	s.WaitReady(scene.Patience, "comes")
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(renewed) })
	t.Logf("the Lease was renewed %s after the certificate", scene.Milliseconds(time.Since(renewed)))
	if now := s.Record.View().Pod(s.Namespace, "ends"); now.UID != w.Pods[0].UID ||
		now.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("the pod was restarted more than once: %s", scene.Describe(now))
	}
}

// credentials are a kubeconfig of the node that names its certificate's files.
type credentials struct {
	s          *scene.Scene
	ca         *tls.Certificate
	kubeconfig string
	cert, key  string
}

func newCredentials(s *scene.Scene) *credentials {
	s.T.Helper()
	dir := s.T.TempDir()
	c := &credentials{
		s:          s,
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		cert:       filepath.Join(dir, "client.crt"),
		key:        filepath.Join(dir, "client.key"),
	}
	pki := filepath.Join(s.Dir(), "pki")
	ca, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		s.T.Fatal(err)
	}
	c.ca = &ca
	config, err := clientcmd.LoadFromFile(s.NodeKubeconfig())
	if err != nil {
		s.T.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.cert, ClientKey: c.key}
	}
	if err := clientcmd.WriteToFile(*config, c.kubeconfig); err != nil {
		s.T.Fatal(err)
	}
	return c
}

// issue replaces the certificate by one that is good for so long.
func (c *credentials) issue(life time.Duration) {
	t := c.s.T
	t.Helper()
	// One key is enough: what counts is the certificate's time, and with it the pair fits at any moment.
	key := c.ca.PrivateKey
	if _, err := os.Stat(c.key); errors.Is(err, os.ErrNotExist) {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issuer, err := x509.ParseCertificate(c.ca.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "system:node:" + c.s.NodeName(), Organization: []string{"system:nodes"}},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, issuer, issuer.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	hidden := c.cert + ".new"
	if err := os.WriteFile(hidden, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, c.cert); err != nil {
		t.Fatal(err)
	}
}
