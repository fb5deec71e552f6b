package clientcert

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// newAPI returns a client of the API of a server, made of a kubeconfig.
func newAPI(t *testing.T, handle http.HandlerFunc) *kubernetes.Clientset {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: server.URL}, &clientcmdapi.AuthInfo{Token: "t"})
	config, err := Config(path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestAnAnswerThatIsNoObject is a failure, whatever is asked for.
func TestAnAnswerThatIsNoObject(t *testing.T) {
	const list = `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`
	for name, answer := range map[string]struct {
		kind, body string
		good       bool
	}{
		"the API server":         {"application/json", list, true},
		"a health check":         {"application/json", `{"status": "ok"}`, false},
		"an object with no kind": {"application/json; charset=utf-8", `{}`, false},
		"a text of JSON":         {"application/json", `"ok"`, false},
		"a page":                 {"text/html", "<html>We are back soon</html>", false},
		"half an object":         {"application/json", list[:40], false},
		"nothing":                {"", "", false},
	} {
		client := newAPI(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", answer.kind)
			_, _ = io.WriteString(w, answer.body)
		})
		core := client.CoreV1()
		_, listed := core.Services("").List(t.Context(), metav1.ListOptions{})
		deleted := core.Pods("ns").Delete(t.Context(), "web", metav1.DeleteOptions{})
		for what, err := range map[string]error{"a list": listed, "a deletion": deleted} {
			if (err == nil) != answer.good {
				t.Errorf("%s is the answer to %s: %v", name, what, err)
			}
		}
	}
}

// TestAnObjectInProtobuf is not looked into.
func TestAnObjectInProtobuf(t *testing.T) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {protobuf}}}
	if err := checkObject(answer); err != nil {
		t.Error(err)
	}
}

// TestWatchesAreNotReadToTheirEnd by what checks answers.
func TestWatchesAreNotReadToTheirEnd(t *testing.T) {
	client := newAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1"}}`+"\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	w, err := client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		if e.Type != "ADDED" {
			t.Errorf("the event is %v", e)
		}
	case <-time.After(time.Minute):
		t.Error("there is no event")
	}
}

// TestARedirectWritesNothing: http.Client follows with a GET, the answer to which looks like one to the write.
func TestARedirectWritesNothing(t *testing.T) {
	const pod = `{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "uid": "u"}}`
	for code, followed := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true} {
		var wrote []string
		client := newAPI(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/there") {
				http.Redirect(w, r, "/there"+r.URL.Path, code)
				return
			}
			if r.Method != http.MethodGet {
				wrote = append(wrote, r.Method)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, pod)
		})
		pods := client.CoreV1().Pods("ns")
		_, patched := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{},
			"status")
		deleted := pods.Delete(t.Context(), "web", metav1.DeleteOptions{})
		if (patched == nil) != followed || (deleted == nil) != followed || (len(wrote) == 2) != followed {
			t.Errorf("%d: patch %v, deletion %v, written %v", code, patched, deleted, wrote)
		}
		if got, err := pods.Get(t.Context(), "web", metav1.GetOptions{}); err != nil || got.UID != "u" {
			t.Errorf("%d: get %v, %v", code, got, err)
		}
	}
}

// TestARefusalWithoutAnEnd is not read for as long as it lasts.
func TestARefusalWithoutAnEnd(t *testing.T) {
	client := newAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 32<<10))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client.CoreV1().Pods("ns").Get(ctx, "web", metav1.GetOptions{})
	if err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

// TestARedirectStaysWithHTTPS has a server send a client on to one that says nothing of who it is.
func TestARedirectStaysWithHTTPS(t *testing.T) {
	const list = `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`
	answer := func(w http.ResponseWriter, r *http.Request) {
		if token := r.Header.Get("Authorization"); r.TLS == nil && token != "" {
			t.Errorf("a server without TLS is sent %q", token)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, list)
	}
	plain := httptest.NewServer(http.HandlerFunc(answer))
	defer plain.Close()
	for to, want := range map[string]bool{plain.URL: false, "": true} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/there" {
				answer(w, r)
				return
			}
			http.Redirect(w, r, to+"/there", http.StatusTemporaryRedirect)
		}))
		defer server.Close()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca},
			&clientcmdapi.AuthInfo{Token: "secret"})
		config, err := Config(path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); (err == nil) != want {
			t.Errorf("a redirect to %q: %v", to, err)
		}
	}
}
