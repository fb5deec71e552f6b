// Package teststream provides a test runtime with exec, attach and port-forward that lead to a real streaming server.
package teststream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// Runtime is a fake runtime that also streams: every command repeats its input, and so does every
// process that is attached to and every port.
type Runtime struct {
	*fake.Runtime
	streams streaming.Server
}

// New returns a runtime that serves its streams on loopback until the test ends.
func New(t testing.TB) *Runtime {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: l.Addr().String()}
	streams, err := streaming.NewServer(config, repeats{})
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: streams}}
	s.Start()
	t.Cleanup(s.Close)
	return &Runtime{Runtime: fake.NewRuntime(nil), streams: streams}
}

// Exec implements CRI.
func (r *Runtime) Exec(_ context.Context, in *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return r.streams.GetExec(in)
}

// Attach implements CRI.
func (r *Runtime) Attach(_ context.Context, in *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return r.streams.GetAttach(in)
}

// PortForward implements CRI.
func (r *Runtime) PortForward(_ context.Context,
	in *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return r.streams.GetPortForward(in)
}

// Conn returns a connection to the runtime that has no transport, as the fake's.
func (r *Runtime) Conn() grpc.ClientConnInterface { return direct{r.Runtime.Conn(), r} }

type direct struct {
	grpc.ClientConnInterface
	r *Runtime
}

// Invoke implements grpc.ClientConnInterface.
func (d direct) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	var answer proto.Message
	var err error
	switch method[strings.LastIndex(method, "/")+1:] {
	case "Exec":
		answer, err = d.r.Exec(ctx, args.(*runtimeapi.ExecRequest))
	case "Attach":
		answer, err = d.r.Attach(ctx, args.(*runtimeapi.AttachRequest))
	case "PortForward":
		answer, err = d.r.PortForward(ctx, args.(*runtimeapi.PortForwardRequest))
	default:
		return d.ClientConnInterface.Invoke(ctx, method, args, reply, o...)
	}
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

// repeats is what runs in containers.
type repeats struct{}

// Exec implements streaming.Runtime.
func (repeats) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// Attach implements streaming.Runtime.
func (repeats) Attach(_ context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward implements streaming.Runtime.
func (repeats) PortForward(_ context.Context, _ string, _ int32, stream io.ReadWriteCloser) error {
	_, err := io.Copy(stream, stream)
	return err
}
