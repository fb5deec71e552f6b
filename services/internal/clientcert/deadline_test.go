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

// silent answers with a header, or not even that, and then says nothing until the request ends.
type silent struct{ withHeader bool }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.withHeader {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: endless{r.Context()},
	}, nil
}

type endless struct{ ctx context.Context }

func (e endless) Read([]byte) (int, error) {
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}

func (endless) Close() error { return nil }

// TestEachRequestEnds though what it is sent to neither answers nor closes the connection.
func TestEachRequestEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "http://192.0.2.1"}, &clientcmdapi.AuthInfo{Token: "t"})
	for name, server := range map[string]silent{"no answer": {}, "an answer without an end": {withHeader: true}} {
		synctest.Test(t, func(t *testing.T) {
			config, err := Config(path, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			config.Transport = server
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			pods := client.CoreV1().Pods("")
			ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
			defer cancel()
			begun := time.Now()
			if _, err := pods.List(ctx, metav1.ListOptions{}); err == nil || time.Since(begun) != longestRequest {
				t.Errorf("%s: a list took %v: %v", name, time.Since(begun), err)
			}
			if !server.withHeader {
				return // client-go begins such a watch again, several times
			}
			begun = time.Now()
			w, err := pods.Watch(ctx, metav1.ListOptions{TimeoutSeconds: new(int64(300))})
			if err != nil {
				t.Fatal(err)
			}
			for range w.ResultChan() { // it has no events
			}
			w.Stop()
			if took := time.Since(begun); took != 5*time.Minute+watchSlack {
				t.Errorf("%s: a watch took %v", name, took)
			}
		})
	}
}

// TestAnEndLeavesNothing of a request behind that was answered.
func TestAnEndLeavesNothing(t *testing.T) {
	var ctx context.Context
	next := roundTripper(func(r *http.Request) (*http.Response, error) {
		ctx = r.Context()
		return &http.Response{Body: io.NopCloser(strings.NewReader("x"))}, nil
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := endRequests(next).RoundTrip(r)
	if err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	if err := answer.Body.Close(); err != nil || ctx.Err() == nil {
		t.Errorf("the context of the request has not ended: %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
