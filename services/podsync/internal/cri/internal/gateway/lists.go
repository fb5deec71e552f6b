package gateway

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
)

// list makes the messages of a stream from the request for it.
type list func(ctx context.Context, from *crilist.Lister, request []byte) iter.Seq2[proto.Message, error]

// ownStreams are the streams that the gateway makes itself, one item a message. A runtime may put so many items into a
// message that the message is too large. Its other streams are passed on.
var ownStreams = map[string]list{
	"StreamPodSandboxes": streamed(
		func(ctx context.Context, l *crilist.Lister, q *runtimeapi.StreamPodSandboxesRequest) iter.Seq2[
			*runtimeapi.PodSandbox, error] {
			return l.Sandboxes(ctx, q.GetFilter())
		},
		func(one ...*runtimeapi.PodSandbox) proto.Message {
			return &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: one}
		}),
	"StreamContainers": streamed(
		func(ctx context.Context, l *crilist.Lister, q *runtimeapi.StreamContainersRequest) iter.Seq2[
			*runtimeapi.Container, error] {
			return l.Containers(ctx, q.GetFilter())
		},
		func(one ...*runtimeapi.Container) proto.Message {
			return &runtimeapi.StreamContainersResponse{Containers: one}
		}),
	"StreamPodSandboxStats": streamed(
		func(ctx context.Context, l *crilist.Lister, q *runtimeapi.StreamPodSandboxStatsRequest) iter.Seq2[
			*runtimeapi.PodSandboxStats, error] {
			return l.SandboxStats(ctx, q.GetFilter())
		},
		func(one ...*runtimeapi.PodSandboxStats) proto.Message {
			return &runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: one}
		}),
	"StreamContainerStats": streamed(
		func(ctx context.Context, l *crilist.Lister, q *runtimeapi.StreamContainerStatsRequest) iter.Seq2[
			*runtimeapi.ContainerStats, error] {
			return l.ContainerStats(ctx, q.GetFilter())
		},
		func(one ...*runtimeapi.ContainerStats) proto.Message {
			return &runtimeapi.StreamContainerStatsResponse{ContainerStats: one}
		}),
}

// streamed returns the stream of a list.
func streamed[Q any, P interface {
	*Q
	proto.Message
}, T any](read func(context.Context, *crilist.Lister, P) iter.Seq2[T, error], message func(...T) proto.Message) list {
	return func(ctx context.Context, from *crilist.Lister, request []byte) iter.Seq2[proto.Message, error] {
		return func(yield func(proto.Message, error) bool) {
			q := P(new(Q))
			if err := proto.Unmarshal(request, q); err != nil {
				yield(nil, status.Errorf(codes.InvalidArgument, "decode the request: %v", err))
				return
			}
			for item, err := range read(ctx, from, q) {
				if !yield(message(item), err) {
					return
				}
			}
		}
	}
}

// sendList answers with a stream that the gateway makes itself.
func (g *Gateway) sendList(ctx context.Context, to grpc.ServerStream, l list, request []byte) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.opts.Timeout)
		defer cancel()
	}
	for message, err := range l(ctx, g.opts.Lists, request) {
		if err != nil {
			return asStatus(err)
		}
		data, err := proto.Marshal(message)
		if err != nil {
			return status.Errorf(codes.Internal, "encode an item of the list: %v", err)
		}
		if err := to.SendMsg(&frame{data: data}); err != nil {
			return err
		}
	}
	return nil
}
