// Package telemetry provides the log, the metrics and the health endpoint of a service.
//
// There is one slog logger per process, which also receives the klog lines of client-go, one Prometheus registry per
// service, and one HTTP server on a unix socket for /metrics and /healthz. Writing a log line never waits for the
// reader of the log: lines that do not fit into a bounded buffer are dropped and counted. So a supervisor that is
// stopped does not stop the services.
package telemetry
