// Package telemetry is how a service shows what it does: its log, its metrics and its health.
//
// Its job: one slog logger for the process, which client-go's klog lines go through too; one
// Prometheus registry for each service; one HTTP server on a unix socket for both metrics and
// health. Its inputs are LogOptions and a listener; its outputs are lines on standard error, and
// /metrics and /healthz.
//
// It guarantees that writing a log line never waits for whoever reads the log: what does not fit
// into a bounded buffer is dropped and counted. A supervisor that is stopped must not stop those
// who log to it.
package telemetry
