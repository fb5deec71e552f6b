package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxInformational is how many answers of status 1xx may come before an answer, as http.Transport has it.
	maxInformational = 5
)

// oneShot asks over HTTP/1.1 without TLS, on a connection for each request, and leaves all other
// requests to another transport. What it sends and takes, and the words for what goes wrong, are those
// of an http.Transport that keeps nothing alive. But it works in the caller's goroutine: the
// goroutines, their stacks and the buffers that a transport makes for a connection are a good part of
// what a probe costs, which is asked each second of each container.
type oneShot struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	other http.RoundTripper
}

var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 1<<10) }}
)

// RoundTrip implements http.RoundTripper.
func (o *oneShot) RoundTrip(r *http.Request) (*http.Response, error) {
	if !simple(r) {
		return o.other.RoundTrip(r)
	}
	ctx := r.Context()
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	conn, err := o.dial(ctx, "tcp", net.JoinHostPort(r.URL.Hostname(), port))
	if err != nil {
		return nil, preferEnd(ctx, err)
	}
	in, ok := readers.Get().(*bufio.Reader)
	if !ok {
		panic("the pool holds something else")
	}
	e := &exchange{ctx: ctx, conn: conn, in: in, limit: io.LimitedReader{R: conn, N: maxHeader}}
	in.Reset(&e.limit)
	e.stop = context.AfterFunc(ctx, func() { _ = conn.Close() }) // what waits for it ends
	answer, err := e.run(r)
	if err != nil {
		e.end()
		return nil, preferEnd(ctx, err)
	}
	e.body, answer.Body = answer.Body, e
	return answer, nil
}

// simple reports whether a request is one that this is for, and is one that http.Transport would send.
func simple(r *http.Request) bool {
	if r.URL.Scheme != "http" || r.Body != nil && r.Body != http.NoBody {
		return false
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return false
			}
		}
	}
	host := r.URL.Hostname()
	for i := range len(host) {
		if host[i] >= 0x80 {
			return false // an international name
		}
	}
	return host != ""
}

// preferEnd returns why the context ended, if it has: that is why all else failed.
func preferEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// exchange is one request and its answer. It is the body of the answer.
type exchange struct {
	ctx   context.Context
	conn  net.Conn
	stop  func() bool
	in    *bufio.Reader
	limit io.LimitedReader
	body  io.Reader
}

// run sends the request and reads the answer's head.
func (e *exchange) run(r *http.Request) (*http.Response, error) {
	closing := *r
	closing.Close = true
	if err := e.send(&closing); err != nil {
		return nil, broken(err)
	}
	if _, err := e.in.Peek(1); err != nil {
		return nil, err
	}
	for range maxInformational + 1 {
		answer, err := http.ReadResponse(e.in, r)
		switch {
		case err != nil && e.limit.N <= 0:
			return nil, broken(fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", maxHeader))
		case err != nil:
			return nil, broken(err)
		case answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols:
			e.limit.N = math.MaxInt64
			return answer, nil
		}
		e.limit.N = maxHeader
	}
	return nil, broken(errors.New("net/http: too many 1xx informational responses"))
}

func (e *exchange) send(r *http.Request) error {
	out, ok := writers.Get().(*bufio.Writer)
	if !ok {
		panic("the pool holds something else")
	}
	out.Reset(e.conn)
	err := r.Write(out)
	if err == nil {
		err = out.Flush()
	}
	out.Reset(nil)
	writers.Put(out)
	return err
}

// broken is how http.Transport says that a connection was of no use.
func broken(err error) error {
	return fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err)
}

// Read implements io.Reader.
func (e *exchange) Read(b []byte) (int, error) {
	if e.in == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := e.body.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = preferEnd(e.ctx, err)
	}
	return n, err
}

// Close implements io.Closer. What is left of the body is not read.
func (e *exchange) Close() error {
	e.end()
	return nil
}

// end ends the connection, once.
func (e *exchange) end() {
	if e.in == nil {
		return
	}
	e.stop()
	_ = e.conn.Close() // the context's end may have closed it; what is lost is not awaited
	e.in.Reset(nil)
	readers.Put(e.in)
	e.in = nil
}
