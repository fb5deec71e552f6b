package test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// h2 is a client that chooses its frames.
type h2 struct {
	*http2.Framer
	t        *testing.T
	settings *http2.SettingsFrame
}

// h2 connects, and lets the server send so many bytes of an answer.
func (e *testNode) h2(window uint32, pairs ...tls.Certificate) *h2 {
	e.t.Helper()
	c, err := tls.Dial("tcp", e.secure(),
		&tls.Config{InsecureSkipVerify: true, Certificates: pairs, NextProtos: []string{"h2"}})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	// It bounds the test. What must not be borne for so long is two minutes without a limit of its own.
	if err := c.SetDeadline(time.Now().Add(45 * time.Second)); err != nil {
		e.t.Fatal(err)
	}
	client := &h2{Framer: http2.NewFramer(c, c), t: e.t}
	client.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		e.t.Fatal(err)
	}
	if err := client.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		e.t.Fatal(err)
	}
	first, err := client.ReadFrame()
	if err != nil {
		e.t.Fatal(err)
	}
	var ok bool
	if client.settings, ok = first.(*http2.SettingsFrame); !ok {
		e.t.Fatalf("the first frame is %v", first)
	}
	return client
}

// setting is what the server says of itself.
func (c *h2) setting(id http2.SettingID) uint32 {
	v, _ := c.settings.Value(id)
	return v
}

// get sends a request with so many fields, and returns the frame of its stream for which it is asked.
func (c *h2) get(fields int, is func(http2.Frame) bool) http2.Frame {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	all := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: "/pods"},
		{Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "n"}}
	for i := range fields {
		all = append(all, hpack.HeaderField{Name: fmt.Sprintf("a%d", i)})
	}
	for _, field := range all {
		if err := encoder.WriteField(field); err != nil {
			c.t.Fatal(err)
		}
	}
	rest := block.Bytes()
	next := func() []byte { n := min(len(rest), 16<<10); piece := rest[:n]; rest = rest[n:]; return piece }
	piece := next()
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: piece, EndStream: true,
		EndHeaders: len(rest) == 0})
	for err == nil && len(rest) > 0 {
		piece = next()
		err = c.WriteContinuation(1, len(rest) == 0, piece)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			c.t.Fatalf("no such frame comes: %v", err)
		}
		if is(frame) {
			return frame
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			err = c.WriteSettingsAck()
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func isAnswer(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok }

// TestHeadersOfHTTP2 has a stranger and a client who is known send as large headers.
func TestHeadersOfHTTP2(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.start()
	pair := e.clients.Pair(testpki.Client("jane get_healthz"))
	proctest.Await(t, 30*time.Second, "a client is known", func() bool { // the CA's file is read meanwhile
		return e.h2(1<<16, pair).setting(http2.SettingMaxConcurrentStreams) == 250
	})
	const slop = 320 // what net/http adds for HTTP/2
	if got := e.h2(1 << 16).setting(http2.SettingMaxHeaderListSize); got != 16<<10+slop {
		t.Errorf("a stranger may send headers of %d bytes, want 16 KiB", got)
	}
	if got := e.h2(1<<16, pair).setting(http2.SettingMaxHeaderListSize); got != 1<<20+slop {
		t.Errorf("a known client may send headers of %d bytes, want 1 MiB", got)
	}
	for name, test := range map[string]struct {
		client *h2
		want   string
	}{"a stranger": {e.h2(1 << 16), "431"}, "a known client": {e.h2(1<<16, pair), "403"}} {
		answer := test.client.get(2000, isAnswer).(*http2.MetaHeadersFrame)
		if got := answer.PseudoValue("status"); got != test.want {
			t.Errorf("%s with 2000 fields is answered %s, want %s", name, got, test.want)
		}
	}
}

// TestStrangersWhoReadNothing has strangers let no byte of the refusal come, over both protocols.
func TestStrangersWhoReadNothing(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.start()
	e.h2(0).get(1, func(f http2.Frame) bool { // or no frame comes in time, which fails the test
		reset, ok := f.(*http2.RSTStreamFrame)
		return ok && reset.StreamID == 1
	})
}

// TestManyFieldsOfStrangers counts what a stranger can send of one header over HTTP/1.
func TestManyFieldsOfStrangers(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.start()
	c, err := tls.Dial("tcp", e.secure(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	// As much as is allowed and one field more, without an end.
	const allowed = 16<<10 + 4<<10
	request := "GET /pods HTTP/1.1\r\nHost: n\r\n" + strings.Repeat("aaaa:\r\n", allowed/7+1)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	n, err := c.Read(answer)
	if err != nil && !errors.Is(err, io.EOF) || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 431 ") {
		t.Errorf("a header of %d bytes that goes on is answered %q, %v", len(request), answer[:n], err)
	}
}
