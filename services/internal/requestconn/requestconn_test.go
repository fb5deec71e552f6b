package requestconn

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is one end of a connection whose other end says nothing.
func pipe(t *testing.T) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = far.Close() })
	return near
}

func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	return !errors.As(err, &late) || !late.Timeout()
}

// TestConnectionsEndWithTheRequest, those that come later too.
func TestConnectionsEndWithTheRequest(t *testing.T) {
	ctx, end := With(t.Context())
	dial := New(func(context.Context, string, string) (net.Conn, error) { return pipe(t), nil })
	detached := context.WithoutCancel(ctx) // as http.Transport's
	early, err := dial(detached, "tcp", "192.0.2.1:1")
	if err != nil || closed(early) {
		t.Fatalf("the connection of a request is closed: %v", err)
	}
	end()
	late, err := dial(detached, "tcp", "192.0.2.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if !closed(early) || !closed(late) {
		t.Error("a connection is open after its request")
	}
	if _, err := dial(t.Context(), "tcp", "192.0.2.1:1"); err == nil {
		t.Error("a request without an end has a connection")
	}
}

// TestARequestHasFewConnections, however often the transport asks for one.
func TestARequestHasFewConnections(t *testing.T) {
	ctx, end := With(t.Context())
	defer end()
	dial := New(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") })
	n := 0
	for ; n < 100; n++ {
		if _, err := dial(ctx, "tcp", "192.0.2.1:1"); errors.Is(err, errTooMany) {
			break
		}
	}
	if n != maxConnections {
		t.Errorf("a request has %d connections, want %d", n, maxConnections)
	}
}

// TestATransportDialsNoLonger than its request lasts.
func TestATransportDialsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ended := make(chan time.Duration, 1)
		client := http.Client{Transport: &http.Transport{
			DialContext: New(func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				ended <- time.Since(began)
				return nil, ctx.Err()
			}),
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ctx, end := With(ctx)
		defer end()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://192.0.2.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := client.Do(r); err == nil {
			_ = answer.Body.Close()
			t.Error("there is an answer")
		}
		if took := <-ended; took != time.Minute {
			t.Errorf("the transport dials for %v", took)
		}
	})
}
