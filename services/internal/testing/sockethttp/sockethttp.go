// Package sockethttp asks HTTP servers on unix sockets for tests.
package sockethttp

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// Client returns a client of the server on a socket. It keeps no connection.
func Client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}

// Get returns what the server on a socket answers at a path, such as "/metrics".
func Get(t testing.TB, socket, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://service"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := Client(socket).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}
