package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/build"
)

// Programs of an instance with GroupTraces, as Log and Status name them. Such an instance traces all that its agent
// does, in the runtime too: both send to an OpenTelemetry Collector, which passes everything on to a receiver.
const (
	Collector     = build.Collector
	TraceReceiver = build.TraceReceiver
)

// StopCollector stops the collector.
func (i *Instance) StopCollector(ctx context.Context) error { return i.stop(ctx, Collector) }

// StartCollector starts it again.
func (i *Instance) StartCollector(ctx context.Context) error {
	if !i.hasTraces() {
		return fmt.Errorf("start %s: instance %s was made without the group %s", Collector, i.r.Name, GroupTraces)
	}
	return i.start(ctx, Collector)
}

// SignalCollector sends it a signal: a collector that is stopped by SIGSTOP hangs.
func (i *Instance) SignalCollector(sig unix.Signal) error { return i.process(Collector).Signal(sig) }

// Spans is the file to which the receiver adds spans, a line of JSON for each.
func (i *Instance) Spans() string { return filepath.Join(i.r.Dir, "spans") }

func (i *Instance) hasTraces() bool { return i.r.Binaries[Collector] != "" }

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

func (i *Instance) collectorConfig() string { return filepath.Join(i.r.Dir, "etc/collector.yaml") }

// collectorText has no queue: a sender has its answer once the receiver has written, and gets the receiver's errors.
const collectorText = `receivers:
  otlp: {protocols: {grpc: {endpoint: %q}}}
exporters:
  otlp_grpc:
    endpoint: %q
    tls: {insecure: true}
    compression: none
    sending_queue: {enabled: false}
    retry_on_failure: {enabled: false}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [otlp_grpc]}
`

func (i *Instance) writeCollectorConfig() error {
	if !i.hasTraces() {
		return nil
	}
	path := i.collectorConfig()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write configuration of %s: %w", Collector, err)
	}
	text := fmt.Sprintf(collectorText, i.traceEndpoint(), loopback(i.r.Ports.Spans))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write configuration of %s: %w", Collector, err)
	}
	return nil
}

// startTraces starts the receiver and the collector before it.
func (i *Instance) startTraces(ctx context.Context) error {
	for _, name := range []string{TraceReceiver, Collector} {
		if err := i.start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// listens checks that an address accepts connections.
func listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
