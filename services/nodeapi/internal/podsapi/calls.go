package podsapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/microlet/microlet/services/internal/nodepods"
)

// description is the service of api.proto, whose answers are encoded by this package.
var description = grpc.ServiceDesc{
	ServiceName: podsv1alpha1.Pods_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil), // the handlers know it
	Metadata:    podsv1alpha1.Pods_ServiceDesc.Metadata,
	Methods: []grpc.MethodDesc{
		{MethodName: "ListPods", Handler: unary(podsv1alpha1.Pods_ListPods_FullMethodName, (*API).listPods)},
		{MethodName: "GetPod", Handler: unary(podsv1alpha1.Pods_GetPod_FullMethodName, (*API).getPod)},
	},
	Streams: []grpc.StreamDesc{{
		StreamName: "WatchPods", ServerStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(new(podsv1alpha1.WatchPodsRequest)); err != nil {
				return err
			}
			return server.(*API).watchPods(stream)
		},
	}},
}

// unary is the handler of a method.
func unary[R any](method string, answer func(*API, context.Context, *R) (*message, error)) grpc.MethodHandler {
	return func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor,
	) (any, error) {
		request := new(R)
		if err := decode(request); err != nil {
			return nil, err
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: server, FullMethod: method},
			func(ctx context.Context, request any) (any, error) {
				m, err := answer(server.(*API), ctx, request.(*R))
				if err != nil {
					return nil, err // and not a *message
				}
				return m, nil
			})
	}
}

func (a *API) listPods(ctx context.Context, _ *podsv1alpha1.ListPodsRequest) (*message, error) {
	list, err := a.feed.list()
	if err != nil {
		return nil, err
	}
	return a.answer(ctx, list...)
}

func (a *API) getPod(ctx context.Context, r *podsv1alpha1.GetPodRequest) (*message, error) {
	p, err := a.feed.get(r.GetPodUID())
	if err != nil {
		return nil, err
	}
	return a.answer(ctx, p)
}

func (a *API) answer(ctx context.Context, list ...*nodepods.Pod) (*message, error) {
	pieces := make([]piece, len(list))
	for i, p := range list {
		var err error
		if pieces[i], err = onePod(p); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return encode(ctx, a.lists, pieces...)
}

// encode encodes a message once the budget has room for it.
func encode(ctx context.Context, b *budget, pieces ...piece) (*message, error) {
	l, err := lineOf(ctx)
	if err != nil {
		return nil, err
	}
	owed := int64(0)
	for i := range pieces {
		owed += pieces[i].cost()
	}
	if err := l.charge(ctx, b, owed); err != nil {
		return nil, err
	}
	m := &message{make(mem.BufferSlice, 0, len(pieces))}
	for i := range pieces {
		buffer, err := pieces[i].encode(receipt{l, b})
		if err != nil {
			m.pieces.Free()
			l.settle(b, owed)
			return nil, status.Error(codes.Internal, err.Error())
		}
		owed -= pieces[i].cost()
		m.pieces = append(m.pieces, buffer)
	}
	return m, nil
}

// watchPods sends the pods, and then their changes until the client leaves or is too slow.
func (a *API) watchPods(stream grpc.ServerStream) error {
	list, w, err := a.feed.watch()
	if err != nil {
		return err
	}
	defer w.end()
	for i, p := range list {
		list[i] = nil // it may change while the client takes others
		if err := a.send(stream, event{podsv1alpha1.EventType_ADDED, p}); err != nil {
			return err
		}
	}
	synced := &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}
	if err := stream.SendMsg(synced); err != nil {
		return err
	}
	for {
		e, err := w.take(stream.Context())
		if err != nil {
			return err
		}
		if err := a.send(stream, e); err != nil {
			return err
		}
	}
}

func (a *API) send(stream grpc.ServerStream, e event) error {
	p, err := watched(e)
	if err != nil {
		a.metrics.dropped.Inc()
		return status.Error(codes.Internal, err.Error())
	}
	m, err := encode(stream.Context(), a.events, p)
	if err != nil {
		return err
	}
	return stream.SendMsg(m)
}
