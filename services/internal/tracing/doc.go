// Package tracing records the spans of a service, as parts of traces that go through several.
//
// A Tracer begins traces and sends what it has recorded. It is nil where the node does not trace: then nothing is
// recorded, allocated or sent. Start adds a span to the trace of a context, and needs no Tracer. A Parent carries a
// trace over the bus. DialOptions, ServerOptions, Transport and Handler carry it over gRPC
// and HTTP.
//
// No span waits for the receiver of spans; see package spanqueue. Nothing here is global, because in the single
// placement all services share a process.
package tracing
