package certmanager

import (
	"crypto/tls"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestACertificateThatHasEndedWhenItArrives: a clock that is ahead of the signer's makes a request every few minutes,
// not every second.
func TestACertificateThatHasEndedWhenItArrives(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	n.o.Metrics = prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		m, err := NewClient(n.o)
		if err != nil {
			t.Fatal(err)
		}
		requests := 0
		name := func(n int) string { return fmt.Sprintf("csr-%d", n) }
		resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
		client := fake.NewClientset()
		client.PrependReactor("create", "certificatesigningrequests",
			func(action k8stesting.Action) (bool, runtime.Object, error) {
				c := action.(k8stesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
				// The client selects nothing: whoever waits for a request would see those before it.
				if err := client.Tracker().Delete(resource, "", name(requests)); requests > 0 && err != nil {
					return true, nil, err
				}
				requests++
				c.Name = name(requests)
				c.UID = types.UID(c.Name)
				c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
					{Type: certificatesv1.CertificateApproved, Status: "True"}}
				c.Status.Certificate = server.sign(c.Spec.Request)
				return false, nil, nil
			})
		m.use.clientset = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }

		server.set(-time.Minute, false)
		stop := start(t, m)
		time.Sleep(time.Hour)
		synctest.Wait()
		if most := int(time.Hour/wrongClockPause) + 1; requests < 2 || requests > most {
			t.Errorf("%d requests in an hour, want 2 to %d", requests, most)
		}
		stop()
	})
}
