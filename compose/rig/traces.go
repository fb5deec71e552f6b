package rig

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/build"
)

// TraceReceiver is the receiver of traces, as Log and Status name it in an instance with GroupTraces. Such an instance
// traces all that its agent does, in the runtime too.
const TraceReceiver = build.TraceReceiver

// StopTraceReceiver stops the receiver, as if a collector went away.
func (i *Instance) StopTraceReceiver(ctx context.Context) error { return i.stop(ctx, TraceReceiver) }

// StartTraceReceiver starts it again.
func (i *Instance) StartTraceReceiver(ctx context.Context) error {
	if !i.hasTraces() {
		return fmt.Errorf("start %s: instance %s was made without the group %s", TraceReceiver, i.r.Name, GroupTraces)
	}
	return i.start(ctx, TraceReceiver)
}

// SignalTraceReceiver sends it a signal: a receiver that is stopped by SIGSTOP hangs.
func (i *Instance) SignalTraceReceiver(sig unix.Signal) error {
	return i.process(TraceReceiver).Signal(sig)
}

// Spans is the file to which the receiver adds spans, a line of JSON for each.
func (i *Instance) Spans() string { return filepath.Join(i.r.Dir, "spans") }

func (i *Instance) hasTraces() bool { return i.r.Binaries[TraceReceiver] != "" }

// traceEndpoint is where traces are sent; empty if they are not.
func (i *Instance) traceEndpoint() string {
	if !i.hasTraces() {
		return ""
	}
	return loopback(i.r.Ports.Traces)
}

// containerdTraces is the environment with which containerd continues the traces of its callers. It begins none.
func (i *Instance) containerdTraces() []string {
	if !i.hasTraces() {
		return nil
	}
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + i.traceEndpoint(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_TRACES_SAMPLER=parentbased_always_off",
		// Half a second after a span has ended it is sent.
		"OTEL_BSP_SCHEDULE_DELAY=500",
	}
}

func (i *Instance) checkTraceReceiver(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", i.traceEndpoint())
	if err != nil {
		return err
	}
	return conn.Close()
}
