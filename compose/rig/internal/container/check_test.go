package container

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	made := filepath.Join(t.TempDir(), made)
	if err := os.WriteFile(made, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{server.URL, "file://" + made} {
		if err := Check(t.Context(), good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	status = http.StatusServiceUnavailable
	for _, bad := range []string{server.URL, "file://" + made + "-not", "unix:///nowhere.sock", "ftp://x", "", "%"} {
		if err := Check(t.Context(), bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestCheckDeployment(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/apps/v1/namespaces/demo/deployments/hello" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"apps/v1","kind":"Deployment",` + answer + `}`))
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"x",` +
		`"contexts":[{"name":"x","context":{"cluster":"x"}}],"clusters":[{"name":"x","cluster":{"server":"` + server.URL + `"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, answer string
		ok           bool
	}{
		{"demo/hello", `"metadata":{"generation":2},"spec":{"replicas":2},` +
			`"status":{"observedGeneration":2,"updatedReplicas":2,"availableReplicas":2}`, true},
		{"demo/hello", `"metadata":{"generation":1},"spec":{},` +
			`"status":{"observedGeneration":1,"updatedReplicas":1,"availableReplicas":1}`, true},
		{"demo/hello", `"metadata":{"generation":2},"spec":{"replicas":2},` +
			`"status":{"observedGeneration":1,"updatedReplicas":2,"availableReplicas":2}`, false},
		{"demo/hello", `"metadata":{"generation":1},"spec":{"replicas":2},` +
			`"status":{"observedGeneration":1,"updatedReplicas":2,"availableReplicas":1}`, false},
		{"demo/hello", `"metadata":{"generation":1},"spec":{"replicas":2},` +
			`"status":{"observedGeneration":1,"updatedReplicas":1,"availableReplicas":2}`, false},
		{"demo/other", "", false},
		{"hello", "", false},
	} {
		answer = c.answer
		if err := CheckDeployment(t.Context(), kubeconfig, c.name); (err == nil) != c.ok {
			t.Errorf("%s with %s: %v, want success %t", c.name, c.answer, err, c.ok)
		}
	}
	if err := CheckDeployment(t.Context(), filepath.Join(t.TempDir(), "none"), "demo/hello"); err == nil {
		t.Error("a missing kubeconfig passes")
	}
}
