package hook

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/services/internal/testing/largecert"
)

// TestHeadersOfAHookAreBounded, also those of an answer that sends it on.
func TestHeadersOfAHookAreBounded(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := 3 // 12 KiB
		if strings.HasSuffix(r.URL.Path, "many") {
			lines = 8
		}
		for i := range lines {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 4000))
		}
		if strings.HasPrefix(r.URL.Path, "/redirect") {
			http.Redirect(w, r, "/few", http.StatusFound)
		}
	})
	for scheme, start := range map[v1.URIScheme]func(http.Handler) *httptest.Server{
		v1.URISchemeHTTP:  httptest.NewServer,
		v1.URISchemeHTTPS: httptest.NewTLSServer,
	} {
		server := start(handler)
		defer server.Close()
		host, port := address(t, server)
		for path, want := range map[string]string{
			"/few": "", "/redirect/few": "",
			"/many":          "net/http: server response headers exceeded 16384 bytes; aborted",
			"/redirect/many": "net/http: server response headers exceeded 16384 bytes; aborted",
		} {
			r, _ := newRunner(t, nil)
			err := r.Run(t.Context(), input(host), &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
				Path: path, Port: port, Scheme: scheme,
			}})
			if (err == nil) != (want == "") || !strings.HasSuffix(text(err), want) {
				t.Errorf("%s %s: %v, want %q", scheme, path, err, want)
			}
		}
	}
}

// TestCertificatesOfAHookAreBounded has a server show one with 200 KB of names.
func TestCertificatesOfAHookAreBounded(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{largecert.Pair(t, 50_000)}}
	server.StartTLS()
	defer server.Close()
	host, port := address(t, server)
	r, _ := newRunner(t, nil)
	err := r.Run(t.Context(), input(host), &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Path: "/", Port: port, Scheme: v1.URISchemeHTTPS,
	}})
	if want := "more than 64 KiB before the handshake is done"; !strings.HasSuffix(text(err), want) {
		t.Errorf("%v, want an error that ends in %q", err, want)
	}
}

// TestAServerThatShakesNoHands keeps no connection beyond the hook.
func TestAServerThatShakesNoHands(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	closed := make(chan error, 1)
	go func() {
		c, err := server.Accept()
		if err == nil {
			_, err = c.Read(make([]byte, 1)) // what begins the handshake
		}
		cancel()
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, err = io.Copy(io.Discard, c)
		}
		closed <- err
	}()
	r, _ := newRunner(t, nil)
	err = r.Run(ctx, input("127.0.0.1"), &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Path: "/", Port: intstr.FromInt(server.Addr().(*net.TCPAddr).Port), Scheme: v1.URISchemeHTTPS,
	}})
	if err == nil {
		t.Error("the hook has an answer")
	}
	if err := <-closed; err != nil {
		t.Errorf("the hook keeps its connection: %v", err)
	}
}
