package runtime

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// operations are the kubelet's values of the label operation_type. A method that is not
// here is counted under its own name in snake case.
var operations = map[string]string{
	"UpdateContainerResources":  "update_container",
	"RunPodSandbox":             "run_podsandbox",
	"StopPodSandbox":            "stop_podsandbox",
	"RemovePodSandbox":          "remove_podsandbox",
	"PodSandboxStatus":          "podsandbox_status",
	"PodSandboxStats":           "podsandbox_stats",
	"ListPodSandbox":            "list_podsandbox",
	"ListPodSandboxStats":       "list_podsandbox_stats",
	"ListPodSandboxMetrics":     "list_podsandbox_metrics",
	"UpdatePodSandboxResources": "update_podsandbox_resources",
}

// operation returns the kubelet's operation type of a full gRPC method.
func operation(fullMethod string) string {
	method := fullMethod[strings.LastIndex(fullMethod, "/")+1:]
	if op, ok := operations[method]; ok {
		return op
	}
	var b strings.Builder
	for i, c := range method {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// callMetrics are the kubelet's metrics of runtime calls.
type callMetrics struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
}

func newCallMetrics(reg prometheus.Registerer) (*callMetrics, error) {
	m := &callMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total",
			Help: "Cumulative number of runtime operations by operation type.",
		}, []string{"operation_type"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total",
			Help: "Cumulative number of runtime operation errors by operation type.",
		}, []string{"operation_type"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_runtime_operations_duration_seconds",
			Help:    "Duration in seconds of runtime operations. Broken down by operation type.",
			Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
		}, []string{"operation_type"}),
	}
	return m, register(reg, m.total, m.errors, m.duration)
}

func register(reg prometheus.Registerer, collectors ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics of the runtime: %w", err)
		}
	}
	return nil
}

func (m *callMetrics) observe(method string, begun time.Time, err error) {
	op := operation(method)
	m.total.WithLabelValues(op).Inc()
	m.duration.WithLabelValues(op).Observe(time.Since(begun).Seconds())
	if err != nil {
		m.errors.WithLabelValues(op).Inc()
	}
}

// instrumented counts the calls that go through a connection.
type instrumented struct {
	grpc.ClientConnInterface
	metrics *callMetrics
}

// Invoke implements grpc.ClientConnInterface.
func (c instrumented) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	begun := time.Now()
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	c.metrics.observe(method, begun, err)
	return err
}

// NewStream implements grpc.ClientConnInterface; what is counted is the opening.
func (c instrumented) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	begun := time.Now()
	s, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	c.metrics.observe(method, begun, err)
	return s, err
}
