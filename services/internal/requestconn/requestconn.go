// Package requestconn ends the connections of an HTTP request with the request.
//
// http.Transport goes on with a connection after the request that it is for has ended. It waits without an end for a
// server that does not shake hands, and keeps an HTTP/2 connection that comes too late for ever. It opens one after the
// other for a server of HTTP/2 that refuses requests. The servers of pods must not be able to have a process do so.
//
// The input is a context and a function that dials. The output is a context for a request with its redirects, and a
// function that dials for it: as long as the request lasts, and 16 times at most.
package requestconn

import (
	"context"
	"errors"
	"net"
	"sync"
)

// maxConnections is how many connections a request may have, with up to ten redirects and some attempts that fail.
const maxConnections = 16

var errTooMany = errors.New("the request needs more than 16 connections")

// Dial is how connections are made; as in http.Transport.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

type key struct{}

// request is one that is under way, with its connections.
type request struct {
	ctx context.Context

	mu    sync.Mutex
	left  int
	ended bool
	conns []net.Conn
}

// With returns the context of a request whose connections end closes. It must be called when the answer has been read.
func With(ctx context.Context) (of context.Context, end func()) {
	r := &request{ctx: ctx, left: maxConnections}
	return context.WithValue(ctx, key{}, r), r.end
}

// New returns how connections are made for requests with a context of With. Their own context bounds it, and not that
// which http.Transport gives, which has no end.
func New(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		r, _ := ctx.Value(key{}).(*request)
		if r == nil {
			return nil, errors.New("the request does not say when its connections end")
		}
		if err := r.begin(); err != nil {
			return nil, err
		}
		c, err := dial(r.ctx, network, address)
		if err != nil {
			return nil, err
		}
		r.add(c)
		return c, nil
	}
}

func (r *request) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return errTooMany
	}
	r.left--
	return nil
}

func (r *request) add(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		_ = c.Close() // nothing waits for it
		return
	}
	r.conns = append(r.conns, c)
}

func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, c := range r.conns {
		_ = c.Close() // it may be closed already
	}
	r.conns = nil
}
