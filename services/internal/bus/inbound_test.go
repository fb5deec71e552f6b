package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// said is a connection on which a bus has said this.
type said struct {
	net.Conn
	io.Reader
}

func (s said) Read(p []byte) (int, error) { return s.Reader.Read(p) }
func (said) Close() error                 { return nil }

func TestWhatTheBusMaySay(t *testing.T) {
	entry := func(size int) string {
		return fmt.Sprintf("MSG $KV.HEARTBEATS.pleg.0 1 %d\r\n%s\r\n", size, strings.Repeat("x", size))
	}
	for name, test := range map[string]struct{ says, want string }{
		"a conversation": {"INFO {\"server_id\":\"x\"}\r\nPONG\r\nMSG a 1 5\r\nhello\r\nMSG a 1 r 0\r\n\r\n" +
			"HMSG a 1 4 9\r\nNATShello\r\nHMSG a 1 r 4 9\r\nNATS\r\nMSG\r\nPING\r\n+OK\r\n-ERR 'why'\r\n", ""},
		"a large entry":              {entry(16 << 10), ""},
		"an entry that is too large": {entry(32 << 10), "at most"},
		"a message that is too large": {fmt.Sprintf("MSG a 1 %d\r\n", subject.MaxPayload+maxHeader+1),
			"at most"},
		"a size of any length":  {"MSG a 1 999999999999999999999\r\n", "size"},
		"a size that is none":   {"MSG a 1 -1\r\n", "size"},
		"no size":               {"MSG a 1\r\n", "3 arguments"},
		"one argument too many": {"MSG a 1 r s 5\r\nhello\r\n", "6 arguments"},
		"a longer message":      {"MSG a 1 5\r\nhello!\r\nPING\r\n", "longer than its size"},
		"small letters":         {"msg a 1 99999999999\r\n", "unknown operation"},
		"a line feed alone":     {"PING\nPING\r\n", "CR LF"},
		"a tab":                 {"MSG a\t1 5\r\n", "control characters"},
		"a line without an end": {"INFO " + strings.Repeat("x", maxServerLine), "a line of more"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, from := range []io.Reader{
				strings.NewReader(test.says), iotest.OneByteReader(strings.NewReader(test.says)),
			} {
				heard, err := io.ReadAll(newInbound(said{Reader: from}))
				switch {
				case test.want == "" && (err != nil || string(heard) != test.says):
					t.Errorf("heard %.64q, %v", heard, err)
				case test.want != "" && (!errors.Is(err, errInbound) || !strings.Contains(err.Error(), test.want)):
					t.Errorf("it ends with %v, want %q", err, test.want)
				}
			}
		})
	}
}

// TestABusThatSpeaksWithoutEnd is read no faster than all that a bus has to say could have to be worked on.
func TestABusThatSpeaksWithoutEnd(t *testing.T) {
	for what, times := range map[string]int{
		fmt.Sprintf("MSG a 1 %d\r\n%s\r\n", 1<<20, strings.Repeat("x", 1<<20)): 700, "PING\r\n": 200_000,
		"-ERR 'Permissions Violation for Publish to \"x\"'\r\n": 700,
	} {
		synctest.Test(t, func(t *testing.T) {
			says := make([]io.Reader, 0, times)
			for range times {
				says = append(says, strings.NewReader(what))
			}
			began := time.Now()
			if _, err := io.Copy(io.Discard, newInbound(said{Reader: io.MultiReader(says...)})); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < 2*time.Second {
				t.Errorf("%.16q is read %d times within %v", what, times, took)
			}
		})
	}
}

// TestABusThatNamesAnySize ends the connection, and not the process.
func TestABusThatNamesAnySize(t *testing.T) {
	dir := t.TempDir()
	if err := GenerateNKeys(dir, []role.Identity{{Role: role.Podsync, UID: os.Getuid(), GID: os.Getgid()}}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "nats.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connections := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections <- struct{}{}
			go func() {
				defer conn.Close()
				fmt.Fprint(conn, "INFO {\"server_id\":\"X\",\"nonce\":\"abc\",\"headers\":true,\"max_payload\":1048576,"+
					"\"proto\":1}\r\n")
				r := bufio.NewReader(conn)
				for line := ""; line != "PING\r\n"; {
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				fmt.Fprintf(conn, "PONG\r\nMSG a 1 9223372036854775807\r\n")
				_, _ = io.Copy(io.Discard, r)
			}()
		}
	}()
	c, err := New(Options{
		Socket: socket, SeedFile: SeedFile(dir, role.Podsync), Role: role.Podsync, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	proctest.Await(t, time.Minute, "the client connects again", func() bool { return len(connections) > 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
