package certs

import (
	"crypto/tls"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
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
		client, requests := server.client(t)
		m.use.clientset = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }

		server.set(-time.Minute, false)
		stop := start(t, m)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, most := requests(), int(time.Hour/wrongClockPause)+1; got < 2 || got > most {
			t.Errorf("%d requests in an hour, want 2 to %d", got, most)
		}
		stop()
	})
}
