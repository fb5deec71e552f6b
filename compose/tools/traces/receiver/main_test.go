package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/compose/tools/traces/span"
)

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
		Value: &commonpb.AnyValue_StringValue{StringValue: value},
	}}
}

// request has a root that took a second, and a child that failed.
func request() *coltracepb.ExportTraceServiceRequest {
	trace := []byte{0: 0xab, 15: 1}
	return &coltracepb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "podsync")}},
		ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{
			{
				Name: "syncPod", Kind: tracepb.Span_SPAN_KIND_INTERNAL, TraceId: trace, SpanId: []byte{7: 1},
				StartTimeUnixNano: 1e18, EndTimeUnixNano: 1e18 + 1e9,
				Attributes: []*commonpb.KeyValue{text("k8s.pod.name", "a"), {
					Key: "n", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: 7}},
				}},
			},
			{
				Name: "PullImage", Kind: tracepb.Span_SPAN_KIND_CLIENT, TraceId: trace, SpanId: []byte{7: 2},
				ParentSpanId: []byte{7: 1}, Status: &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: "no"},
			},
		}}},
	}}}
}

// full fails once it has a byte.
type full struct{ bytes.Buffer }

func (f *full) Write(p []byte) (int, error) {
	if f.Len() > 0 {
		return 0, errors.New("no space")
	}
	return f.Buffer.Write(p)
}

func TestWhatIsReceivedIsWritten(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out full
	ended := make(chan error)
	go func() { ended <- serve(ctx, l, &out) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := coltracepb.NewTraceServiceClient(conn)
	if _, err := client.Export(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Export(t.Context(), request()); status.Code(err) != codes.Internal {
		t.Errorf("spans that could not be written are taken: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got, err := span.Read(&out.Buffer)
	if err != nil || len(got) != 2 {
		t.Fatalf("read %+v, %v", got, err)
	}
	root, child := got[0], got[1]
	if root.Service != "podsync" || root.Name != "syncPod" || root.Trace != "ab000000000000000000000000000001" ||
		root.ID != "0000000000000001" || root.Parent != "" || root.Kind != "internal" || root.Error != "" ||
		root.End.Sub(root.Start) != time.Second || root.Attributes["k8s.pod.name"] != "a" || root.Attributes["n"] != "7" {
		t.Errorf("the root is %+v", root)
	}
	if child.Trace != root.Trace || child.Parent != root.ID || child.Kind != "client" || child.Error != "no" {
		t.Errorf("the child is %+v", child)
	}
}
