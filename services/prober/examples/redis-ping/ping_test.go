package main

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	probepluginv1 "github.com/microlet/microlet/proto/microlet/probeplugin/v1"
)

// redis answers every PING with one line; it is silent without one.
func redis(t *testing.T, answer string) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				var asked strings.Builder
				for range 3 {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					asked.WriteString(line)
				}
				if asked.String() == "*1\r\n$4\r\nPING\r\n" && answer != "" {
					_, _ = c.Write([]byte(answer + "\r\n"))
				}
				_, _ = r.ReadString('\n') // until the other side closes
			}()
		}
	}()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

func TestPing(t *testing.T) {
	for answer, want := range map[string]struct {
		healthy bool
		message string
	}{
		"+PONG":                             {true, "+PONG"},
		"-NOAUTH Authentication required.":  {true, "-NOAUTH"},
		"-LOADING Redis is loading the dat": {false, "LOADING"},
		"HTTP/1.1 400 Bad Request":          {false, "HTTP/1.1 400"},
		"":                                  {false, "no answer to PING"},
		"+" + strings.Repeat("x", 1000):     {false, "no answer to PING"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		healthy, message, err := ping(ctx, &probepluginv1.ProbeRequest{Host: "127.0.0.1", Port: redis(t, answer)})
		cancel()
		if err != nil || healthy != want.healthy || !strings.Contains(message, want.message) {
			t.Errorf("%q: %v, %q, %v", answer, healthy, message, err)
		}
	}
	if healthy, message, err := ping(t.Context(), &probepluginv1.ProbeRequest{Host: "127.0.0.1", Port: 1}); err != nil ||
		healthy || !strings.Contains(message, "refused") {
		t.Errorf("no server: %v, %q, %v", healthy, message, err)
	}
	if _, _, err := ping(t.Context(), &probepluginv1.ProbeRequest{Host: "127.0.0.1"}); err == nil {
		t.Error("a probe without a port has a result")
	}
}
