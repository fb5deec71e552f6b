package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// logged is a call as Kubernetes' end-to-end suite reads it from the log of a driver's container.
type logged struct {
	Method    string
	Request   any
	Response  any
	Error     string
	FullError any `json:",omitempty"`
}

// logCalls writes each call with what it contains, secrets too: it is for volumes that tests make.
func logCalls(out io.Writer) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		answer, err := handle(ctx, request)
		l := logged{Method: info.FullMethod, Request: request, Response: answer}
		if err != nil {
			l.Error, l.FullError = err.Error(), status.Convert(err).Proto()
		}
		if text, err := json.Marshal(l); err == nil {
			_, _ = fmt.Fprintf(out, "gRPCCall: %s\n", text)
		}
		return answer, err
	}
}
