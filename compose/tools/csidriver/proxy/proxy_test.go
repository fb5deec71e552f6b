package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun: each caller of the socket gets a connection of the driver's side, and both end together.
func TestRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.sock")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, socket, "tcp://"+address) }()
	for _, word := range []string{"one", "two"} {
		near, far := dial(t, "unix", socket), dial(t, "tcp", address)
		if _, err := io.WriteString(near, word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(word))
		if _, err := io.ReadFull(far, got); err != nil || string(got) != word {
			t.Fatalf("the driver's side reads %q, %v: want %q", got, err, word)
		}
		if _, err := far.Write(got); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(near, got); err != nil || string(got) != word {
			t.Fatalf("the caller reads %q, %v: want %q", got, err, word)
		}
		if err := far.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(got); !errors.Is(err, io.EOF) {
			t.Errorf("the driver's side has ended, and the caller reads: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// dial waits for the listener.
func dial(t *testing.T, kind, address string) net.Conn {
	t.Helper()
	for {
		c, err := net.Dial(kind, address)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestRefusesAnotherAddress(t *testing.T) {
	err := Run(t.Context(), filepath.Join(t.TempDir(), "s"), "unix:///run/s")
	if err == nil || !strings.Contains(err.Error(), "-proxy-endpoint") {
		t.Errorf("%v", err)
	}
}
