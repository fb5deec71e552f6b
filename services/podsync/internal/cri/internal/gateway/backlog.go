package gateway

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of the events that wait for a caller. One event has the statuses of a pod and of all of its containers.
const (
	maxBacklog      = 1000
	maxBacklogBytes = maxMessage
)

// readAhead reads a stream of the runtime however slowly the caller reads, and returns what reads the next message of
// it. containerd puts the events for all readers into one queue: a reader that does not read stops the queue, and with
// it each call that starts, stops or removes a container. cancel ends the stream. A caller that falls too far behind
// loses it.
func readAhead(from grpc.ClientStream, cancel context.CancelFunc) (next func() (*frame, error)) {
	messages := make(chan *frame, maxBacklog)
	var waiting atomic.Int64
	var end error
	go func() {
		defer close(messages)
		for {
			m := &frame{}
			if end = from.RecvMsg(m); end != nil {
				return
			}
			if waiting.Add(int64(len(m.data))) > maxBacklogBytes || len(messages) == cap(messages) {
				break
			}
			messages <- m
		}
		cancel()
		for from.RecvMsg(&frame{}) == nil { // gRPC frees a stream that is read to its end
		}
		end = status.Error(codes.ResourceExhausted, "the events are not read fast enough: list, and follow them again")
	}()
	return func() (*frame, error) {
		m, ok := <-messages
		if !ok {
			return nil, end
		}
		waiting.Add(-int64(len(m.data)))
		return m, nil
	}
}
