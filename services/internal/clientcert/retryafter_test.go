package clientcert

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maintenance answers once as a load balancer that is being changed, and then as an API server.
type maintenance struct{ asked int }

func (m *maintenance) RoundTrip(*http.Request) (*http.Response, error) {
	m.asked++
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
	body := `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`
	if m.asked == 1 {
		answer.StatusCode, body = http.StatusServiceUnavailable, "<html>We are back soon</html>"
		answer.Header = http.Header{"Retry-After": {"3600"}}
	}
	answer.Body = io.NopCloser(strings.NewReader(body))
	return answer, nil
}

// TestNoServerHasAClientWaitLong has something between the node and the API server answer that the node may ask again
// in an hour. It is back at once.
func TestNoServerHasAClientWaitLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	file := filepath.Join(t.TempDir(), "node.pem")
	write(t, file, pair(t, "n"))
	for name, user := range map[string]*clientcmdapi.AuthInfo{
		"a token":               {Token: "t"},
		"a certificate in file": {ClientCertificate: file, ClientKey: file},
	} {
		writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "http://192.0.2.1"}, user)
		synctest.Test(t, func(t *testing.T) {
			config, err := Config(path, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			server := &maintenance{}
			config.Transport = server
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			_, err = client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
			if took := time.Since(begun); err != nil || took > time.Minute || server.asked != 2 {
				t.Errorf("%s: %d requests in %v, %v", name, server.asked, took, err)
			}
		})
	}
}
