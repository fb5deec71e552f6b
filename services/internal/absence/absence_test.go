package absence

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestPod asks servers by the client that podsync uses.
func TestPod(t *testing.T) {
	status := func(change func(*metav1.Status)) string {
		s := apierrors.NewNotFound(v1.Resource("pods"), "web").Status()
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		change(&s)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, test := range map[string]struct {
		code              int
		contentType, body string
		want              bool
	}{
		"the API server": {404, "application/json", status(func(*metav1.Status) {}), true},
		"a page":         {404, "text/html", "<html>404 Not Found</html>", false},
		"nothing":        {404, "", "", false},
		"some JSON":      {404, "application/json", `{"error":"no route"}`, false},
		"a path that the API server does not serve": {404, "text/plain", "404 page not found\n", false},
		"a Status without details": {404, "application/json",
			status(func(s *metav1.Status) { s.Details = nil }), false},
		"another pod": {404, "application/json", status(func(s *metav1.Status) { s.Details.Name = "db" }), false},
		"a Node":      {404, "application/json", status(func(s *metav1.Status) { s.Details.Kind = "nodes" }), false},
		"a lookup of admission": {404, "application/json",
			status(func(s *metav1.Status) { s.Details.Kind = "pod" }), false},
		"another error": {503, "text/plain", "upstream", false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", test.contentType)
			w.WriteHeader(test.code)
			fmt.Fprint(w, test.body)
		}))
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Pods("ns").Get(t.Context(), "web", metav1.GetOptions{})
		if got := Pod(err, "web"); got != test.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got := Pod(fmt.Errorf("get pod: %w", err), "web"); got != test.want {
			t.Errorf("%s, wrapped: %v", name, got)
		}
		server.Close()
	}
	if Pod(nil, "web") {
		t.Error("no error is an absence")
	}
}
