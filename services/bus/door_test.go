package bus

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A client that does not read must not hold its connection for ever.
func TestAClientThatDoesNotReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, outside := net.Pipe()
		server, inside := net.Pipe()
		defer outside.Close()
		go func() { _, _ = inside.Write([]byte("INFO {}\r\n")) }()
		began := time.Now()
		err := join(t.Context(), client, server, func(string) error { return nil })
		if err == nil {
			t.Error("join ended without a reason")
		}
		if took := time.Since(began); took != writeTimeout {
			t.Errorf("the connection ended after %s, want %s", took, writeTimeout)
		}
	})
}
