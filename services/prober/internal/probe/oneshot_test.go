package probe

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// ports are those of the prober's end of a connection, of which no two are alike.
var ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// Whatever a server says, the result and its words are those that http.Transport would have led to.
func TestOneShotIsATransport(t *testing.T) {
	answers := map[string]string{
		"plain":             "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
		"1.0, to the end":   "HTTP/1.0 200 OK\r\n\r\nbody to the end",
		"chunked":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
		"chunks that break": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
		"too short":         "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nbody",
		"hints": "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 " +
			"OK\r\nContent-Length: 4\r\n\r\nbody",
		"nothing but hints":      strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 3),
		"switches":               "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"none":                   "HTTP/1.1 204 No Content\r\n\r\n",
		"not modified":           "HTTP/1.1 304 Not Modified\r\n\r\n",
		"nothing":                "",
		"half a line":            "HTTP/1.1 20",
		"half a head":            "HTTP/1.1 200 OK\r\nContent-Le",
		"another protocol":       "SSH-2.0-OpenSSH_9.2\r\n",
		"a head that is none":    "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"two lengths":            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a length that is none":  "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nab",
		"redirect without place": "HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nab",
		"redirect to nonsense":   "HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 2\r\n\r\nab",
		"compressed":             "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab",
		"a status of four":       "HTTP/1.1 2000 OK\r\n\r\n",
		"a body of zeros":        "HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\n\x00\x00\x00",
	}
	headers := map[string][]v1.HTTPHeader{
		"":              nil,
		", bad value":   {{Name: "X", Value: "a\nb"}},
		", bad name":    {{Name: "X Y", Value: "a"}},
		", another way": {{Name: "Connection", Value: "keep-alive"}},
	}
	one := prober()
	other := prober()
	reference := newHTTPClients()
	shot, ok := reference.plain.(*oneShot)
	if !ok {
		t.Fatal("there is nothing to compare with")
	}
	other.http.plain = shot.other
	for name, answer := range answers {
		address := serve(t, func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				fmt.Fprint(c, answer)
			}
		})
		for with, h := range headers {
			target := get(t, address+"/path", h...)
			target.Probe.TimeoutSeconds = 5
			got, gotErr := one.Probe(t.Context(), target)
			want, wantErr := other.Probe(t.Context(), target)
			say := func(v Result, err error) string {
				return ports.ReplaceAllString(fmt.Sprintf("%d %q %v", v.Outcome, v.Output, err), "address")
			}
			if say(got, gotErr) != say(want, wantErr) {
				t.Errorf("%s%s: %s; a transport: %s", name, with, say(got, gotErr), say(want, wantErr))
			}
		}
	}
}

// A closed body and a request after its deadline hold no connection.
func TestOneShotLetsGo(t *testing.T) {
	gone := make(chan error, 1)
	address := serve(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		_, _ = http.ReadRequest(r)
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbody")
		_, err := r.ReadByte() // until the prober goes
		gone <- err
	})
	p := prober()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := p.http.plain.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := answer.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a read after the end: %v", err)
	}
	wait(t, gone)

	target := get(t, address)
	if _, err := p.Probe(t.Context(), target); !errors.Is(err, ErrBroken) ||
		!strings.Contains(err.Error(),
			"context deadline exceeded (Client.Timeout or context cancellation while reading body)") {
		t.Errorf("a body that does not end: %v", err)
	}
	wait(t, gone)
}

func wait(t *testing.T, gone <-chan error) {
	t.Helper()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the connection is still there")
	}
}
