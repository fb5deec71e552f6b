package runtime

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// slow decodes an answer when the test lets it.
type slow struct {
	goOn    chan struct{}
	reading atomic.Int32
}

func (*slow) Name() string { return "proto" }

func (*slow) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (s *slow) Unmarshal(data mem.BufferSlice, v any) error {
	s.reading.Add(1)
	<-s.goOn
	s.reading.Add(-1)
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

// pipes is a listener in the process, so that time can be virtual.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	end    context.CancelFunc
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn)}
	p.closed, p.end = context.WithCancel(context.Background())
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.end(); return nil }

func (*pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.conns <- far
	return near, nil
}

const printed = 1 << 20

// commands is a container in which "print" prints, "fail" fails, and "hang" does not end.
func commands(t *testing.T) (f *fake.Runtime, container string) {
	t.Helper()
	f = fake.NewRuntime(nil)
	f.SetProgram("c", fake.Program{Exec: func(ctx context.Context, cmd []string) ([]byte, []byte, int32, error) {
		switch cmd[0] {
		case "hang":
			<-ctx.Done()
			return nil, nil, 0, ctx.Err()
		case "fail":
			return nil, nil, 0, status.Error(codes.FailedPrecondition, "no such file")
		}
		return make([]byte, printed), []byte("err"), 3, nil
	}})
	_, ids, err := f.StartPod(t.Context(), fake.Pod{UID: "u", Containers: []string{"c"}})
	if err != nil {
		t.Fatal(err)
	}
	return f, ids["c"]
}

// TestOutputsOfManyCommands: podsync reads what a few commands have printed at one time, also while others run, and
// loses none.
func TestOutputsOfManyCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, container := commands(t)
		socket := newPipes()
		defer f.ServeOn(socket)()
		conn, err := grpc.NewClient("passthrough:///runtime", grpc.WithContextDialer(socket.dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(streamWindow))
		if err != nil {
			t.Fatal(err)
		}
		outputs, err := newOutputs(conn)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		codec := &slow{goOn: make(chan struct{})}
		exec := func(ctx context.Context, command string) <-chan error {
			done := make(chan error, 1)
			go func() {
				answer := &runtimeapi.ExecSyncResponse{}
				err := outputs.Invoke(ctx, runtimeapi.RuntimeService_ExecSync_FullMethodName,
					&runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{command}}, answer,
					grpc.ForceCodecV2(codec))
				if err == nil && (len(answer.GetStdout()) != printed || string(answer.GetStderr()) != "err" ||
					answer.GetExitCode() != 3) {
					err = errors.New("the answer is not whole")
				}
				done <- err
			}()
			return done
		}
		var hung, all []<-chan error
		for range 3 * outputsAtOnce {
			hung = append(hung, exec(ctx, "hang"))
		}
		synctest.Wait()
		for range 5 * outputsAtOnce {
			all = append(all, exec(t.Context(), "print"))
		}
		for range all {
			synctest.Wait()
			if n := codec.reading.Load(); n > outputsAtOnce {
				t.Errorf("what %d commands have printed is read at one time", n)
			}
			codec.goOn <- struct{}{}
		}
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := <-exec(ctx, "fail"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a command that cannot run: %v", err)
		}
		cancel()
		for _, done := range hung {
			if err := <-done; status.Code(err) != codes.Canceled {
				t.Errorf("a command that is given up: %v", err)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}
