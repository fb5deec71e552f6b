package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// forward accepts connections at one address and passes them on to another
// until ctx is done or end is called, which waits for the end of all.
func forward(ctx context.Context, from, to string) (end func(), err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", from)
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", to, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		<-ctx.Done()
		_ = listener.Close()
	})
	running.Go(func() {
		defer cancel()
		for {
			conn, err := listener.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue
			}
			running.Go(func() { pass(ctx, conn, to) })
		}
	})
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// forwardAll forwards each address of the map to its value.
func forwardAll(ctx context.Context, addresses map[string]string) (end func(), err error) {
	var ends []func()
	end = func() {
		for _, end := range ends {
			end()
		}
	}
	for from, to := range addresses {
		one, err := forward(ctx, from, to)
		if err != nil {
			end()
			return nil, err
		}
		ends = append(ends, one)
	}
	return end, nil
}

// pass copies both ways until either side closes or ctx is done.
func pass(ctx context.Context, client net.Conn, to string) {
	defer func() { _ = client.Close() }()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return // the client sees its connection closed, as without an agent
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	var requests sync.WaitGroup
	requests.Go(func() {
		_, _ = io.Copy(server, client)
		if half, ok := server.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	requests.Wait()
}
