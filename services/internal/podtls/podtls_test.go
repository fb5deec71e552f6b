package podtls

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/largecert"
)

// TestHandshakesAreBounded, and what comes after them is not.
func TestHandshakesAreBounded(t *testing.T) {
	const size = 200_000
	for _, test := range []struct {
		names int
		want  error
	}{{1, nil}, {15_000, nil}, {17_000, errLarge}, {60_000, errLarge}} {
		named := make(chan string, 1)
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			Certificates: []tls.Certificate{largecert.Pair(t, test.names)},
			GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				named <- hello.ServerName
				return nil, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(make([]byte, size))
			_ = c.Close()
		}()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		dial := New((&net.Dialer{}).DialContext, &tls.Config{InsecureSkipVerify: true})
		c, err := dial(t.Context(), "tcp", net.JoinHostPort("localhost", port))
		if !errors.Is(err, test.want) {
			t.Errorf("%d names: %v, want %v", test.names, err, test.want)
		}
		if got := <-named; got != "localhost" {
			t.Errorf("the server is called %q", got)
		}
		if err != nil {
			continue
		}
		if got, err := io.ReadAll(c); len(got) != size || err != nil {
			t.Errorf("%d names: %d bytes, %v", test.names, len(got), err)
		}
		_ = c.Close()
	}
}
