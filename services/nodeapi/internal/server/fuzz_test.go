package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
	"github.com/microlet/microlet/services/nodeapi/internal/teststream"
)

// FuzzPaths sends paths and queries to every handler: the server answers each of them, and no caller passes that the
// checker refuses.
func FuzzPaths(f *testing.F) {
	for _, seed := range []string{
		"/exec/ns/p/c?command=%00", "/containerLogs/ns/p/../../c", "/logs/%2e%2e/%2e%2e/etc/shadow",
		"/logs/?query=--file=/etc/shadow",
		"//pods", "/pods;x", "/containerLogs/ns/p/c?tailLines=99999999999999999999", "/run/ns/p/c?cmd=a&cmd=b",
		"/healthz/%2e%2e", "/portForward/ns/p?port=0",
	} {
		f.Add(seed)
	}
	n := newNode(f, nil)
	n.add(f, pod("p", "c"))
	refusing, allowing := n.Handler(decision{refusal: &auth.Refusal{Code: 403}}), n.Handler(decision{})
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://n/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
		if r.URL, err = url.ParseRequestURI(target); err != nil { // as net/http does
			return
		}
		r.RequestURI, r.Body = target, http.NoBody
		refused := httptest.NewRecorder()
		refusing.ServeHTTP(deadlines{refused}, r)
		if refused.Code != 403 {
			t.Errorf("%q: %d for who may not", target, refused.Code)
		}
		if strings.Contains(target, "pprof") || strings.Contains(target, "follow") {
			return // they wait by nature
		}
		allowed := httptest.NewRecorder()
		allowing.ServeHTTP(deadlines{allowed}, r)
		if strings.Contains(allowed.Body.String(), "root:") {
			t.Errorf("%q shows a file outside of the logs: %s", target, allowed.Body)
		}
	})
}

// deadlines makes a recorder what the handlers expect of a connection.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetWriteDeadline(time.Time) error { return nil }
func (deadlines) SetReadDeadline(time.Time) error  { return nil }

// many is a listener of connections inside the process.
type many chan net.Conn

func (l many) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (many) Close() error   { return nil }
func (many) Addr() net.Addr { return &net.TCPAddr{} }

// FuzzStreamHeaders sends requests for streams, with what a client writes of their protocol: headers of
// SPDY's and WebSocket's upgrade, query, and whatever follows. Behind the handler is the streaming server
// that runtimes have. No input makes a handler panic or outlive its connection, and no caller that the checker refuses
// is switched to another protocol.
func FuzzStreamHeaders(f *testing.F) {
	const spdy = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
	const ws = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, path := range []string{"/exec/ns/p/c?command=x&output=1&input=1&tty=1", "/attach/ns/p/c?output=1",
		"/portForward/ns/p?port=80", "/portForward/ns/p"} {
		f.Add("POST", path, spdy, "")
		f.Add("GET", path, ws+"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n", "\x82\x85\x00\x00\x00\x00\x00hell")
		f.Add("GET", path, ws+"Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n", "\x82\x83\x01\x02\x03\x04abc")
		f.Add("GET", path,
			ws+"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Z29vZA, v4.base64.channel.k8s.io\r\n",
			"\x88\x80\x00\x00\x00\x00")
		f.Add("GET", path, "Connection: keep-alive, Upgrade\r\nUpgrade: SPDY/3.1, websocket\r\nX-Stream-Protocol-Version: "+
			"portforward.k8s.io\r\nX-Stream-Protocol-Version: v9\r\n", "\x80\x03\x00\x01\x01\x00\x00\x0a")
	}
	streams := teststream.New(f)
	n := newNode(f, func(o *Options) {
		o.Runtime = runtime.New(streams.Conn(), crilist.Options{}, time.Second)
		o.MaxStreams, o.MaxRequests = 50, 50
	})
	n.runtime = streams.Runtime
	n.add(f, pod("p", "c"))
	var serving sync.WaitGroup
	var panics sync.Map
	server := func(c Checker) many {
		h := n.Handler(c)
		l := make(many)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serving.Add(1)
			defer serving.Done()
			defer func() {
				p := recover()
				if err, ok := p.(error); p != nil && !(ok && errors.Is(err, http.ErrAbortHandler)) {
					panics.Store(fmt.Sprint(p), string(debug.Stack()))
				}
			}()
			h.ServeHTTP(w, r)
		})}
		var running sync.WaitGroup
		running.Go(func() { _ = s.Serve(l) }) // its error is that the listener ended
		f.Cleanup(func() { close(l); running.Wait() })
		return l
	}
	allowed, refused := server(decision{}), server(decision{refusal: &auth.Refusal{Code: 403}})
	f.Fuzz(func(t *testing.T, method, target, headers, rest string) {
		request := method + " " + target + " HTTP/1.1\r\nHost: n\r\n" + headers + "\r\n" + rest
		for _, l := range []many{allowed, refused} {
			near, far := net.Pipe()
			l <- far
			var writing sync.WaitGroup
			writing.Go(func() { _, _ = io.WriteString(near, request) }) // until it is closed
			_ = near.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			answer, err := http.ReadResponse(bufio.NewReader(near), nil)
			if err == nil && l == refused && (answer.StatusCode < 400) {
				t.Errorf("who is refused gets %s", answer.Status)
			}
			if err := near.Close(); err != nil {
				t.Error(err)
			}
			writing.Wait()
		}
		ended := make(chan struct{})
		go func() { serving.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatalf("a handler outlives its connection: %q", request)
		}
		panics.Range(func(what, stack any) bool {
			t.Errorf("a handler panicked with %s: %s", what, stack)
			panics.Delete(what)
			return true
		})
	})
}
