package test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// freePort is one that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestCheckOfARunningAgent: the ports that the agent itself has are not taken.
func TestCheckOfARunningAgent(t *testing.T) {
	main, health := freePort(t), freePort(t)
	a := newAgent(t, "--enable-server=true", "--address=127.0.0.1", fmt.Sprintf("--port=%d", main),
		fmt.Sprintf("--healthz-port=%d", health), "--read-only-port=0")
	a.start()
	a.await("all ready", ready)
	for _, port := range []int{main, health} {
		a.Await(patience, "the port to be open", func() bool {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	for name, runtimeDir := range map[string]string{"its folder": a.runtimeDir(), "another folder": t.TempDir()} {
		args := append(append([]string{"check", "-o", "json"}, a.up()[1:]...), "--runtime-dir="+runtimeDir)
		out, _ := proctest.Command(t.Context(), args...).Output() // something of this machine may be wrong
		var report struct {
			Findings []struct{ Check, State, Detail string }
		}
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ports := 0
		for _, f := range report.Findings {
			if f.Check != "port" {
				continue
			}
			ports++
			if f.State != "ok" || !strings.Contains(f.Detail, "by the running agent") {
				t.Errorf("with %s: %s: %s", name, f.State, f.Detail)
			}
		}
		if ports != 2 {
			t.Errorf("with %s: %d ports in %s", name, ports, out)
		}
	}
	a.stop()
}
