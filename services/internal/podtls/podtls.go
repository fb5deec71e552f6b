// Package podtls connects to TLS servers that a pod has chosen: those of its probes and hooks.
//
// Its input is a function that dials and a TLS configuration. Its output is a function that returns connections after
// their handshake. A server may send 64 KiB until then, because each of the names in a certificate becomes an object: a
// certificate of 240 KB takes 10 MiB.
package podtls

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// maxHandshake bounds what a server sends before the handshake is done: its certificates, and the names of the
// client authorities that it accepts.
const maxHandshake = 64 << 10

var errLarge = errors.New("tls: the server sends more than 64 KiB before the handshake is done")

// Dial is how connections are made; as in http.Transport.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// New returns how TLS connections are made, as http.Transport.DialTLSContext wants it.
func New(dial Dial, config *tls.Config) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("split address: %w", err)
		}
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		if config.ServerName == "" {
			config.ServerName = host
		}
		bound := &bounded{Conn: plain, left: maxHandshake}
		secure := tls.Client(bound, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // it has no user
			return nil, err   // http.Client looks for some errors of crypto/tls, unwrapped
		}
		bound.done = true
		return secure, nil
	}
}

// bounded is a connection of which only so much is read until the handshake is done. One goroutine reads at a time.
type bounded struct {
	net.Conn
	left int
	done bool
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if b.done {
		return n, err
	}
	if b.left -= n; b.left < 0 {
		return 0, errLarge
	}
	return n, err
}
