// Command receiver takes traces by OTLP over gRPC, as a collector does, and writes each span as a line of JSON.
//
//	receiver -listen 127.0.0.1:4317 -o FILE
//
// It is no collector: it forwards, filters and batches nothing. The service is OTLP's own, as its protocol defines it.
// A line is in the file before the sender has its answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:4317", "where to take traces, host:port")
	out := flag.String("o", "", "the file to add spans to")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: receiver -o FILE [-listen HOST:PORT]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *listen, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}

// run receives until ctx ends.
func run(ctx context.Context, listen, out string) error {
	file, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(serve(ctx, l, file), file.Close())
}

// serve receives on a listener until ctx ends.
func serve(ctx context.Context, l net.Listener, to io.Writer) error {
	s := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(s, &receiver{to: to})
	ended := context.AfterFunc(ctx, s.Stop)
	defer ended()
	return s.Serve(l)
}

// receiver implements OTLP's trace service.
type receiver struct {
	coltracepb.UnimplementedTraceServiceServer
	mu sync.Mutex
	to io.Writer
}

// Export implements the service.
func (r *receiver) Export(_ context.Context,
	request *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	text, err := lines(request.GetResourceSpans())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.to.Write(text); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}
