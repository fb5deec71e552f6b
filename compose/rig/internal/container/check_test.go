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
