package csi

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/microlet/microlet/services/internal/pluginsocket"
)

// bytesCodec has a server send bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// liar answers every call with the same bytes, or the same error.
type liar struct {
	*Driver
	mu     sync.Mutex
	answer []byte
	err    error
}

func (l *liar) say(answer []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer, l.err = answer, err
}

func newLiar(t testing.TB) *liar {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{Driver: &Driver{
		name: "d.example", endpoint: path, folder: pluginsocket.Folder{Path: dir}, seconds: newSeconds(nil),
	}}
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			var request []byte
			if err := stream.RecvMsg(&request); err != nil {
				return err
			}
			l.mu.Lock()
			answer, err := l.answer, l.err
			l.mu.Unlock()
			if err != nil {
				return err
			}
			return stream.SendMsg(&answer)
		}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-done, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return l
}

// asks are the calls whose answers are read.
func (l *liar) asks(t testing.TB) []error {
	_, info := l.Info(t.Context())
	_, can := l.Capabilities(t.Context())
	_, stats := l.Stats(t.Context(), "v", "/t")
	return []error{info, can, stats}
}

func TestAnswersWithoutMeasure(t *testing.T) {
	l := newLiar(t)
	for name, c := range map[string]struct {
		answer []byte
		err    error
		code   codes.Code
	}{
		"empty":            {nil, nil, codes.OK},
		"no message":       {[]byte("\xff\xff\xff"), nil, codes.Internal},
		"a megabyte":       {bytes.Repeat([]byte("a"), maxAnswer+1), nil, codes.ResourceExhausted},
		"a long error":     {nil, status.Error(codes.NotFound, strings.Repeat("no ", maxText)), codes.NotFound},
		"an error no text": {nil, status.Error(codes.NotFound, "\xff\xfe\n"), codes.NotFound},
		"an endless error": {nil, status.Error(codes.NotFound, strings.Repeat("no ", maxAnswer)), codes.Internal},
		"an unknown code":  {nil, status.Error(99, "why"), 99},
	} {
		t.Run(name, func(t *testing.T) {
			l.say(c.answer, c.err)
			for i, err := range l.asks(t) {
				text := status.Convert(err).Message()
				if status.Code(err) != c.code || len(text) > maxText+len("…") || !utf8.ValidString(text) {
					t.Errorf("call %d gives %s, %q of %d bytes", i, status.Code(err), text[:min(len(text), 99)], len(text))
				}
			}
		})
	}
}

// FuzzAnswers has a driver answer each question with any bytes.
func FuzzAnswers(f *testing.F) {
	for _, m := range []proto.Message{
		&csi.NodeGetInfoResponse{NodeId: "../../n", MaxVolumesPerNode: -1},
		&csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{nil, {}, {
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: 1 << 30}},
		}}},
		&csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{nil, {Unit: 77, Used: -1 << 63, Total: 1<<63 - 1}}},
	} {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, uint32(0), "")
	}
	f.Add([]byte("\xff"), uint32(codes.NotFound), "\xff\r\n: grpc-status: 0")
	l := newLiar(f)
	f.Fuzz(func(t *testing.T, answer []byte, code uint32, message string) {
		l.say(answer, status.Error(codes.Code(code), message))
		for i, err := range l.asks(t) {
			if text := status.Convert(err).Message(); len(text) > maxText+len("…") || !utf8.ValidString(text) {
				t.Errorf("call %d gives the text %q", i, text)
			}
			if err == nil && codes.Code(code) != codes.OK {
				t.Errorf("call %d forgets the code %d", i, code)
			}
		}
	})
}

// TestSettingsWithoutEnd: a driver that sends settings, whose answers it does not read, loses the connection.
func TestSettingsWithoutEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const most = 64 << 20
	sent := make(chan int, 1)
	go func() {
		n := 0
		defer func() { sent <- n }()
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for f := http2.NewFramer(conn, nil); err == nil && n < most; n += 16 << 10 {
			err = f.WriteSettings(make([]http2.Setting, 2730)...) // as many as a frame has room for
		}
	}()
	d := &Driver{name: "d.example", endpoint: path, folder: pluginsocket.Folder{Path: dir}, seconds: newSeconds(nil)}
	if _, err := call(t.Context(), d, csi.NodeClient.NodeGetInfo, &csi.NodeGetInfoRequest{}); err == nil {
		t.Error("the call has an answer")
	}
	if n := <-sent; n >= most {
		t.Errorf("the driver has sent %d MiB", n>>20)
	}
}
