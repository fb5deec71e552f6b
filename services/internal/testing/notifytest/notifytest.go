// Package notifytest receives what a service says to its supervisor, for tests.
//
// The supervisor is the test. It gives the environment variable NOTIFY_SOCKET to services that it runs and to processes
// that it starts, until it ends.
package notifytest

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds the wait for a notification, on a machine that may be busy.
const patience = time.Minute

// Supervisor receives notifications.
type Supervisor struct {
	t    *testing.T
	conn *net.UnixConn
	said []string
}

// New returns the supervisor of what the test runs from now on.
func New(t *testing.T) *Supervisor {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", address.Name)
	return &Supervisor{t: t, conn: conn}
}

// Until waits until a service says this, and returns all that was said up to then, in order.
func (s *Supervisor) Until(state string) []string {
	s.t.Helper()
	buf := make([]byte, 4096)
	for !slices.Contains(s.said, state) {
		if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			s.t.Fatal(err)
		}
		n, err := s.conn.Read(buf)
		if err != nil {
			s.t.Fatalf("nothing more was said within %v after %q: want %q", patience, s.said, state)
		}
		s.said = append(s.said, strings.Split(string(buf[:n]), "\n")...)
	}
	return s.said
}
