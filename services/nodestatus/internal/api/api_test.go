package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestDeadConnectionIsDropped has an apiserver of which one HTTP/2 connection never answers again, as
// after a firewall forgot it. Requests on it time out and leave it open.
func TestDeadConnectionIsDropped(t *testing.T) {
	var mu sync.Mutex
	dead := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("HTTP/%d, want HTTP/2, or the test proves nothing", r.ProtoMajor)
		}
		mu.Lock()
		if dead == "" {
			dead = r.RemoteAddr
		}
		hang := dead == r.RemoteAddr
		mu.Unlock()
		if hang {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	c := clients(t, server.URL)
	get := func() error {
		_, err := c.Get(context.Background())
		return err
	}
	for range failuresBeforeReset + 1 {
		if err := get(); err == nil {
			t.Fatal("answered by the dead connection")
		}
	}
	for range failuresBeforeReset {
		c.Failed(context.DeadlineExceeded)
	}
	if err := get(); err != nil {
		t.Errorf("after the reset: %v", err)
	}
}

func TestSuccessForgivesFailures(t *testing.T) {
	c := clients(t, "https://127.0.0.1:1")
	for range 10 {
		c.Failed(context.DeadlineExceeded)
		c.Succeeded()
	}
	for range 10 {
		c.Failed(context.DeadlineExceeded)
		c.Failed(fmt.Errorf("patch: %w", apierrors.NewConflict(schema.GroupResource{}, "n", nil)))
	}
	if c.failures != 0 {
		t.Errorf("%d failures are remembered", c.failures)
	}
}

func TestKubeconfigThatCannotBeReadIsNamed(t *testing.T) {
	_, err := New("n", Options{Kubeconfig: "/does/not/exist"})
	if err == nil || !strings.Contains(err.Error(), "--kubeconfig=/does/not/exist") {
		t.Errorf("error %v, want it to name the flag and the file", err)
	}
}

func clients(t *testing.T, url string) *Clients {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New("n",
		Options{Kubeconfig: file, ContentType: "application/json", RequestTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
