package httpport

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// secure has a port speak TLS. It knows callers with a certificate of the authority that it returns.
func secure(t *testing.T, s *Server) *testpki.Authority {
	t.Helper()
	authority := testpki.New(t, "clients")
	s.TLS = func() (*tls.Config, error) {
		return &tls.Config{
			Certificates: []tls.Certificate{authority.Pair(testpki.Server("n"))}, ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"h2", "http/1.1"},
		}, nil
	}
	s.Certified = func(state *tls.ConnectionState) (string, bool) {
		of := state.PeerCertificates[0]
		return of.Subject.CommonName, of.Issuer.CommonName == "clients"
	}
	return authority
}

// TestHeadersOfHTTP1 has callers send headers of some sizes: the command of an exec is in the URL, and one argument may
// have 128 KiB.
func TestHeadersOfHTTP1(t *testing.T) {
	script := strings.Repeat("echo \"a line of a script\"\n", 4000)
	s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if command := r.URL.Query().Get("command"); command != "" && command != script {
			w.WriteHeader(http.StatusTeapot)
		}
	}), Limits{Connections: 100, PerAddress: 100})
	authority := secure(t, s)
	p := start(t, s)
	exec := fmt.Sprintf("POST /exec/default/p/c?command=%s HTTP/1.1\r\nHost: n\r\n\r\n", url.QueryEscape(script))
	token := "GET / HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer " + strings.Repeat("x", 12<<10) + "\r\n\r\n"
	fields := "GET / HTTP/1.1\r\nHost: n\r\n" + strings.Repeat("aaaa:\r\n", 3000) + "\r\n"
	pair := authority.Pair(testpki.Client("apiserver"))
	foreign := testpki.New(t, "others").Pair(testpki.Client("apiserver"))
	for _, test := range []struct {
		name    string
		pairs   []tls.Certificate
		request string
		want    int
	}{
		{"the API server's exec", []tls.Certificate{pair}, exec, 200},
		{"the API server's headers", []tls.Certificate{pair}, fields, 200},
		{"a stranger's token", nil, token, 200},
		{"a stranger's exec", nil, exec, 431},
		{"a stranger's headers", nil, fields, 431},
		{"a stranger with a certificate", []tls.Certificate{foreign}, fields, 431},
	} {
		c := tls.Client(p.dial("10.0.0.1:1"), &tls.Config{InsecureSkipVerify: true, Certificates: test.pairs})
		go func() { _, _ = io.WriteString(c, test.request) }() // the answer may come before its end
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || answer.StatusCode != test.want {
			t.Errorf("%s, of %d bytes: %v, %v; want %d", test.name, len(test.request), answer, err, test.want)
			continue
		}
		_ = answer.Body.Close()
		_ = c.Close()
	}
}

// TestPlainPortsKnowNoCaller sends a header that is larger than a stranger may send.
func TestPlainPortsKnowNoCaller(t *testing.T) {
	p := start(t, server(hello, Limits{Connections: 9, PerAddress: 9}))
	c := p.dial("10.0.0.1:1")
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n"+strings.Repeat("aaaa:\r\n", 3000)+"\r\n")
	}()
	if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != 431 {
		t.Errorf("%v, %v; want 431", answer, err)
	}
}

// TestBytesOfStrangers has many strangers, from one address and from others, begin requests that they do not complete.
// What they hold is bounded. Callers who are known, and who ask for little, keep their connections.
func TestBytesOfStrangers(t *testing.T) {
	const limit, each = 1 << 20, 15 << 10
	synctest.Test(t, func(t *testing.T) {
		p, s := crowd(t, Limits{Connections: 1000, PerAddress: 1000, Bytes: limit})
		known, modest := p.dial("192.0.2.1:1"), p.dial("192.0.2.2:1")
		say(t, known, "/known")
		say(t, modest, "/")
		var conns []net.Conn
		for i := range 100 {
			c := p.dial(fmt.Sprintf("192.0.2.%d:2", i%10+1))
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n"+strings.Repeat("aaaa:\r\n", each/7))
			if err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Fatal(err)
			}
			conns = append(conns, c)
			if got, err := ask(known); err != nil || got != "hello" {
				t.Fatalf("who is known is answered %q, %v beside %d strangers", got, err, i+1)
			}
			if got, err := ask(modest); err != nil || got != "hello" {
				t.Fatalf("who asks for little is answered %q, %v beside %d strangers", got, err, i+1)
			}
		}
		left := strings.Fields(open(conns))
		if held := len(left) * each * byteWeight; held > limit || len(left) == 0 {
			t.Errorf("%d connections are left, with %d bytes", len(left), held)
		}
		if got := testutil.ToFloat64(s.Metrics.evicted.WithLabelValues("test", reasonMemory)); int(got) != 100-len(left) {
			t.Errorf("%v are counted of %d that were closed", got, 100-len(left))
		}
		for _, c := range conns {
			_ = c.Close()
		}
		time.Sleep(time.Second)
		for range 1000 { // nothing is left over of what requests took
			if got, err := ask(modest); err != nil || got != "hello" {
				t.Fatalf("later requests are answered %q, %v", got, err)
			}
		}
	})
}

// TestBytesOfCertifiedCallers has callers with a certificate, to whom nothing is allowed, begin requests that they do
// not complete. What they hold is bounded, and takes nothing from strangers and from a caller to whom something is
// allowed.
func TestBytesOfCertifiedCallers(t *testing.T) {
	const limit, each = 1 << 20, 15 << 10
	s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if of := r.TLS.PeerCertificates; len(of) > 0 && of[0].Subject.CommonName == "apiserver" {
			SetAuthenticated(r.Context())
		}
		fmt.Fprint(w, "hello")
	}), Limits{Connections: 1000, PerAddress: 1000, Bytes: limit, CertifiedBytes: limit})
	authority := secure(t, s)
	p := start(t, s)
	dial := func(remote string, pairs ...tls.Certificate) net.Conn {
		c := tls.Client(p.dial(remote), &tls.Config{InsecureSkipVerify: true, Certificates: pairs})
		t.Cleanup(func() { _ = c.NetConn().Close() })
		if got, err := ask(c); err != nil || got != "hello" {
			t.Fatalf("%s is answered %q, %v", remote, got, err)
		}
		return c
	}
	stranger := dial("192.0.2.1:1")
	pair := authority.Pair(testpki.Client("other"))
	allowed := dial("192.0.2.2:1", authority.Pair(testpki.Client("apiserver")))
	header := "GET / HTTP/1.1\r\nHost: n\r\n" + strings.Repeat("aaaa:\r\n", each/7)
	const conns = 20
	for i := range conns {
		c := dial(fmt.Sprintf("192.0.2.%d:2", i%3+2), pair)
		_, _ = io.WriteString(c, header) // the connection may be closed by now
	}
	if got := testutil.ToFloat64(s.Metrics.evicted.WithLabelValues("test", reasonMemory)); got < conns/2 {
		t.Errorf("%v of %d connections are closed, which take five times what they may", got, conns)
	}
	for name, c := range map[string]net.Conn{"a stranger": stranger, "the caller to whom something is allowed": allowed} {
		if got, err := ask(c); err != nil || got != "hello" {
			t.Errorf("%s is answered %q, %v", name, got, err)
		}
	}
}

// TestSmallRequestsAreCharged has strangers send many requests at one time that say next to nothing. Each takes memory
// until its answer is taken.
func TestSmallRequestsAreCharged(t *testing.T) {
	const conns = 20
	held := make(chan struct{})
	s := server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-held }),
		Limits{Connections: 100, PerAddress: 100, Bytes: conns / 2 * requestWeight})
	p := start(t, s)
	ended := make(chan error, conns)
	for range conns {
		c := p.dial("192.0.2.1:1")
		defer c.Close()
		go func() {
			_, err := ask(c)
			ended <- err
		}()
	}
	late := time.After(time.Minute)
	for range conns / 2 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a request is answered")
			}
		case <-late:
			t.Fatal("no connection is closed")
		}
	}
	close(held)
}

// TestConnectionsOfCertifiedCallers has users with certificates fill the port with requests that do not end. Beyond a
// user's share they give way to new callers, and those first to whom nothing is allowed.
func TestConnectionsOfCertifiedCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if of := r.TLS.PeerCertificates; len(of) > 0 && of[0].Subject.CommonName != "stranger" {
				SetAuthenticated(r.Context())
			}
			if r.URL.Path == "/wait" {
				<-r.Context().Done()
			}
			fmt.Fprint(w, "hello")
		}), Limits{Connections: 12, PerAddress: 12, PerUser: 2})
		authority := secure(t, s)
		p := start(t, s)
		dial := func(user string) net.Conn {
			c := tls.Client(p.dial("192.0.2.1:1"), &tls.Config{
				InsecureSkipVerify: true, Certificates: []tls.Certificate{authority.Pair(testpki.Client(user))},
			})
			t.Cleanup(func() { _ = c.NetConn().Close() })
			return c
		}
		fill := func(user string, n int) (conns []net.Conn) {
			for range n {
				conns = append(conns, dial(user))
				say(t, conns[len(conns)-1], "/wait")
				time.Sleep(time.Second)
			}
			return conns
		}
		few, many, stranger, third := fill("few", 2), fill("many", 6), fill("stranger", 3), fill("third", 1)
		var gone []net.Conn
		for i, gives := range []net.Conn{stranger[0], many[0], many[1]} {
			c := dial("apiserver")
			if got, err := ask(c); err != nil || got != "hello" {
				t.Fatalf("new caller %d is answered %q, %v", i, got, err)
			}
			if got := open([]net.Conn{gives}); got != "" {
				t.Errorf("for new caller %d, a connection stays open that gives way", i)
			}
			_ = c.Close()
			synctest.Wait()
			gone = append(gone, gives)
			third = append(third, fill("third", 1)...)
		}
		if got := testutil.ToFloat64(s.Metrics.evicted.WithLabelValues("test", reasonUser)); int(got) != len(gone) {
			t.Errorf("%v connections are counted that gave way, want %d", got, len(gone))
		}
		if got := open(slices.Concat(few, many[2:], stranger[1:], third[:2])); got != "0 1 2 3 4 5 6 7 8 9" {
			t.Errorf("of the other connections are open %s", got)
		}
	})
}

// TestFramesOfStrangersAreSmall has one begin a frame of 1 MiB, for which the server would take memory before it
// arrives.
func TestFramesOfStrangersAreSmall(t *testing.T) {
	s := server(hello, Limits{Connections: 9, PerAddress: 9})
	authority := secure(t, s)
	p := start(t, s)
	for name, pairs := range map[string][]tls.Certificate{
		"a stranger":                {},
		"a caller with certificate": {authority.Pair(testpki.Client("other"))},
	} {
		c := tls.Client(p.dial("192.0.2.1:1"), &tls.Config{
			InsecureSkipVerify: true, Certificates: pairs, NextProtos: []string{"h2"},
		})
		defer c.NetConn().Close()
		go func() {
			// The preface, SETTINGS, and the head of a frame of DATA.
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
				"\x0f\xff\xff\x00\x00\x00\x00\x00\x01")
		}()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		said, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(said), "\x00\x00\x00\x06") { // GOAWAY with FRAME_SIZE_ERROR
			t.Errorf("%s: %q, %v", name, said, err)
		}
	}
}
