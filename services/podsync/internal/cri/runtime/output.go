package runtime

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/cri/internal/calllimit"
)

// outputsAtOnce is how many answers to ExecSync are read at one time. One has up to 16 MiB of what a command has
// printed, and the commands of all pods may end at the same moment.
const outputsAtOnce = 4

// outputs reads the answers to ExecSync a few at one time. A command that runs holds no place: it takes one when its
// answer has begun to come. Until then the answer stays with the runtime, but for one window of the stream.
type outputs struct {
	grpc.ClientConnInterface
	places *calllimit.Limiter
}

func newOutputs(conn grpc.ClientConnInterface) (outputs, error) {
	// An answer that takes long, such as that of a runtime that sends the header early, loses its place.
	places, err := calllimit.New(calllimit.Limits{Slots: outputsAtOnce}, nil)
	return outputs{conn, places}, err
}

// Invoke implements grpc.ClientConnInterface.
func (o outputs) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method != runtimeapi.RuntimeService_ExecSync_FullMethodName {
		return o.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream of an answer that is not read
	defer cancel()
	s, err := o.NewStream(ctx, &grpc.StreamDesc{StreamName: "ExecSync"}, method, opts...)
	if err != nil {
		return err
	}
	if err := s.SendMsg(args); err != nil {
		return err
	}
	if header, _ := s.Header(); header != nil { // else RecvMsg returns the error
		leave, err := o.places.Acquire(ctx, calllimit.Usual)
		if err != nil {
			return status.FromContextError(err).Err()
		}
		defer leave()
	}
	return s.RecvMsg(reply)
}
