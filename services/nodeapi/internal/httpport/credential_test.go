package httpport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
)

// TestOneTokenMakesNoOtherKnown has a caller who was allowed something send the tokens of others on the connection.
func TestOneTokenMakesNoOtherKnown(t *testing.T) {
	s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := Authenticated(r.Context())
		if r.Header.Get("Authorization") == "Bearer good" {
			r.Header.Del("Authorization") // as authentication does
			SetAuthenticated(r.Context())
		}
		fmt.Fprint(w, known)
	}), Limits{Connections: 9, PerAddress: 9})
	p := start(t, s)
	c := p.dial("192.0.2.1:1")
	defer c.Close()
	answers := bufio.NewReader(c)
	for i, step := range []struct{ header, want string }{
		{"", "false"}, {"Authorization: Bearer good\r\n", "false"}, {"Authorization: Bearer good\r\n", "true"},
		{"Authorization: Bearer other\r\n", "false"}, {"", "false"},
		{"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.b3RoZXI\r\n", "false"},
		{"Authorization: Bearer good\r\n", "true"},
	} {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: n\r\n"+step.header+"\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		if err != nil || string(got) != step.want {
			t.Errorf("request %d with %q: known %s, %v; want %s", i+1, step.header, got, err, step.want)
		}
	}
}

// TestTokensDoNotTakeAllConnections has a caller who may do little use as many connections as there are, and go on with
// a request on each. Others are served, and who has a certificate is known.
func TestTokensDoNotTakeAllConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := crowd(t, Limits{Connections: 8, Unauthenticated: 6, PerAddress: 2, Tokens: 3})
		var conns []net.Conn
		for i := range 8 {
			c := p.dial(fmt.Sprintf("192.0.2.%d:1", i))
			say(t, c, "/known")
			say(t, c, "/known/wait")
			conns = append(conns, c)
		}
		c := p.dial("192.0.2.9:1")
		if got, err := ask(c); err != nil || got != "hello" {
			t.Errorf("another caller is answered %q, %v", got, err)
		}
		if got := open(conns[:3]); got != "0 1 2" {
			t.Errorf("of those who came first are open %s", got)
		}
		_ = conns[0].Close()
		synctest.Wait()
		say(t, c, "/known") // in the place of who left
		for i := range 12 {
			p.dial(fmt.Sprintf("192.0.2.1%d:1", i))
		}
		if got := open([]net.Conn{c}); got != "0" {
			t.Error("a caller with a token is not known though there is a place")
		}
		for _, c := range append(conns, c) {
			_ = c.Close()
		}
	})
}
