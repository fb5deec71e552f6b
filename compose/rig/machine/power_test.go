package machine

import (
	"context"
	"crypto/ed25519"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/test/bufconn"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// A machine that starts many pods on a busy host takes its time for a handshake, and is waited for.
func TestASlowMachineIsWaitedFor(t *testing.T) {
	for _, slow := range []time.Duration{0, 3 * time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			self, err := process.Find("self", os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			_, key, err := ed25519.GenerateKey(nil)
			if err != nil {
				t.Fatal(err)
			}
			signer, err := ssh.NewSignerFromKey(key)
			if err != nil {
				t.Fatal(err)
			}
			server := &ssh.ServerConfig{NoClientAuth: true}
			server.AddHostKey(signer)
			m := &machine{r: record{Process: self, BootTimeout: 5 * time.Minute}}
			m.shell = &shell{
				address:  "machine",
				patience: m.r.patience(),
				config:   &ssh.ClientConfig{User: "root", HostKeyCallback: ssh.FixedHostKey(signer.PublicKey())},
				connect: func(context.Context) (net.Conn, error) {
					l := bufconn.Listen(1 << 16)
					go func() {
						if conn, err := l.Accept(); err == nil {
							answerAfter(slow, conn, server)
						}
					}()
					return l.Dial()
				},
			}
			if err := m.awaitBoot(t.Context(), "another boot"); err != nil {
				t.Errorf("a machine that takes %s for a handshake: %v", slow, err)
			}
			m.shell.drop(nil)
		})
	}
}

// answerAfter serves one SSH connection, with a handshake that takes that long. Each command succeeds and writes a
// line.
func answerAfter(slow time.Duration, conn net.Conn, config *ssh.ServerConfig) {
	time.Sleep(slow)
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		_ = conn.Close()
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		channel, asked, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range asked {
				_ = r.Reply(true, nil)
				if r.Type != "exec" {
					continue
				}
				_, _ = channel.Write([]byte("this boot\n"))
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{0}))
				_ = channel.Close()
			}
		}()
	}
}
