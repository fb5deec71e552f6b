package httpport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// crowd is a port on which callers choose by the path what becomes of their requests: /known authenticates them, and
// /wait holds until the test ends.
func crowd(t *testing.T, l Limits) (*pipes, *Server) {
	t.Helper()
	s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/known") {
			SetAuthenticated(r.Context())
		}
		if strings.HasSuffix(r.URL.Path, "/wait") {
			<-r.Context().Done()
		}
		fmt.Fprint(w, "hello")
	}), l)
	return start(t, s), s
}

// say sends a request for a path.
func say(t *testing.T, c net.Conn, path string) {
	t.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(path, "/wait") {
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

// open says which connections are, by their place.
func open(conns []net.Conn) string {
	synctest.Wait()
	var of []string
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			of = append(of, fmt.Sprint(i))
		}
		_ = c.SetReadDeadline(time.Time{})
	}
	return strings.Join(of, " ")
}

func TestOneAddressReplacesItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := crowd(t, Limits{Connections: 10, PerAddress: 2})
		conns := []net.Conn{p.dial("192.0.2.2:1")}
		for i := range 4 {
			conns = append(conns, p.dial(fmt.Sprintf("192.0.2.1:%d", i)))
		}
		if got := open(conns); got != "0 3 4" {
			t.Errorf("open are %s, want the other address's and the two newest", got)
		}
		if got, err := ask(conns[4]); err != nil || got != "hello" {
			t.Errorf("the newest gets %q, %v", got, err)
		}
		if got := testutil.ToFloat64(s.Metrics.evicted.WithLabelValues("test", reasonAddress)); got != 2 {
			t.Errorf("%g evictions are counted, want 2", got)
		}
	})
}

// TestStrangersGiveWay fills the port from several addresses, none of which has more than its part.
func TestStrangersGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := crowd(t, Limits{Connections: 8, Unauthenticated: 6, PerAddress: 3})
		var conns []net.Conn
		for i := range 6 {
			conns = append(conns, p.dial(fmt.Sprintf("192.0.2.%d:1", i%2+1)))
		}
		conns = append(conns, p.dial("192.0.2.9:1"), p.dial("192.0.2.8:1")) // in the place of each greedy one's oldest
		if got := open(conns); got != "2 3 4 5 6 7" {
			t.Errorf("open are %s", got)
		}
		if got, err := ask(conns[6]); err != nil || got != "hello" {
			t.Errorf("who came to a full port gets %q, %v", got, err)
		}
	})
}

// TestWhoIsKnownStays has a caller with many connections, more than an address may have of strangers, behind
// one address with a flood of these.
func TestWhoIsKnownStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := crowd(t, Limits{Connections: 8, Unauthenticated: 4, PerAddress: 2})
		var known []net.Conn
		for range 5 {
			c := p.dial("192.0.2.1:1")
			say(t, c, "/known")
			known = append(known, c)
		}
		for i := range 50 {
			p.dial("192.0.2.1:2")
			p.dial(fmt.Sprintf("192.0.2.%d:1", i+2))
		}
		if got := open(known); got != "0 1 2 3 4" {
			t.Errorf("of the known caller's are open %s", got)
		}
		c := p.dial("192.0.2.1:1")
		say(t, c, "/known")
		if got := open([]net.Conn{c}); got != "0" {
			t.Error("the known caller gets no more connection")
		}
	})
}

func TestOnlyWhatIsInUseHoldsAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := crowd(t, Limits{Connections: 3, PerAddress: 3})
		var conns []net.Conn
		for i := range 3 {
			c := p.dial(fmt.Sprintf("192.0.2.%d:1", i))
			say(t, c, "/known")
			conns = append(conns, c)
		}
		say(t, conns[0], "/known/wait")
		say(t, conns[2], "/known/wait")
		fourth := p.dial("192.0.2.9:1")
		if got := open(append(conns, fourth)); got != "0 2 3" {
			t.Errorf("open are %s, want all but the unused one", got)
		}
		say(t, fourth, "/known/wait")
		if got := open([]net.Conn{p.dial("192.0.2.8:1")}); got != "" {
			t.Error("there are more connections than may be")
		}
		if got := testutil.ToFloat64(s.Metrics.refused.WithLabelValues("test")); got != 1 {
			t.Errorf("%g refusals are counted, want 1", got)
		}
		for _, c := range append(conns, fourth) {
			_ = c.Close()
		}
		synctest.Wait()
		if got, err := ask(p.dial("192.0.2.7:1")); err != nil || got != "hello" {
			t.Errorf("the place of who left: %q, %v", got, err)
		}
	})
}

func TestAddressesOfOneCaller(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1:1", "192.0.2.1:2", true},
		{"192.0.2.1:1", "192.0.2.2:1", false},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", true},
		{"[2001:db8::1]:1", "[2001:db8::ffff:0:0:1]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		{"[fe80::1%eth0]:1", "[fe80::2]:1", true},
		{"127.0.0.1:1", "127.255.255.254:1", true},
		{"127.0.0.1:1", "[::1]:1", true},
		{"127.0.0.1:1", "[::ffff:127.3.2.1]:1", true},
		{"[::1]:1", "[::2]:1", false},
		{"127.0.0.1:1", "128.0.0.1:1", false},
		{"pipe", "@", true},
		{"pipe", "127.0.0.1:1", false},
	} {
		if got := addressOf(test.a) == addressOf(test.b); got != test.same {
			t.Errorf("%s is %v, %s is %v", test.a, addressOf(test.a), test.b, addressOf(test.b))
		}
	}
}
