package bus

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// A client that does not read must not hold its connection for ever.
func TestAClientThatDoesNotReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, outside := net.Pipe()
		server, inside := net.Pipe()
		defer outside.Close()
		go func() { _, _ = inside.Write([]byte("INFO {}\r\n")) }()
		began := time.Now()
		err := join(t.Context(), client, server, func(string) error { return nil },
			func(int) error { return nil })
		if err == nil {
			t.Error("join ended without a reason")
		}
		if took := time.Since(began); took != writeTimeout {
			t.Errorf("the connection ended after %s, want %s", took, writeTimeout)
		}
	})
}

// A client that speaks without end waits, on whichever connection of its user. podsync does not.
func TestAClientThatSpeaksWithoutEnd(t *testing.T) {
	for uid, wait := range map[int]bool{47102: true, 0: false} {
		synctest.Test(t, func(t *testing.T) {
			d := NewDoor(&Server{log: slog.New(slog.DiscardHandler)}, unixgrpc.Rules{}, nil)
			const operations = 30_000
			began := time.Now()
			for range 2 {
				client, outside := net.Pipe()
				server, inside := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, inside) }()
				go func() {
					_, _ = outside.Write([]byte("CONNECT {}\r\n"))
					for range operations {
						_, _ = outside.Write([]byte("PUB a 1\r\nx\r\n"))
					}
					_ = outside.Close()
				}()
				err := join(t.Context(), client, server, func(string) error { return nil },
					d.pace(t.Context(), unixgrpc.Peer{UID: uid}))
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			}
			const longest = (2*operations*paceCost - paceBurst) / paceRate * time.Second
			if took := time.Since(began); wait != (took >= longest) {
				t.Errorf("uid %d speaks for %s", uid, took)
			}
		})
	}
}
