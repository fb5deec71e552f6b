package podsapi

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// metrics are the kubelet's. Calls that the rate limit rejects are not counted, as with the kubelet.
type metrics struct {
	total    *prometheus.CounterVec
	byMethod map[string]*prometheus.CounterVec
	dropped  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	requests := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			[]string{"server_api_version", "status_code"})
	}
	m := &metrics{
		total: requests("kubelet_pod_requests_total",
			"Calls of the Pods API that have ended, by the API's version and the gRPC status."),
		byMethod: map[string]*prometheus.CounterVec{
			"ListPods": requests("kubelet_pod_requests_list_total",
				"Calls of ListPods of the Pods API, by the API's version and the gRPC status."),
			"GetPod": requests("kubelet_pod_requests_get_total",
				"Calls of GetPod of the Pods API, by the API's version and the gRPC status."),
			"WatchPods": requests("kubelet_pod_requests_watch_total",
				"Calls of WatchPods of the Pods API that have ended, by the API's version and the gRPC status."),
		},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_pod_watch_events_dropped_total",
			Help: "Events that ended a watch of the Pods API: its client was too slow, or the pod cannot be encoded.",
		}),
	}
	errs := []error{r.Register(m.total), r.Register(m.dropped)}
	for _, c := range m.byMethod {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	answer, err := handler(ctx, req)
	m.count(info.FullMethod, err)
	return answer, err
}

func (m *metrics) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	err := handler(server, stream)
	m.count(info.FullMethod, err)
	return err
}

// count counts a call. Its method is one of the service's, as /v1alpha1.Pods/ListPods.
func (m *metrics) count(method string, err error) {
	code := status.Code(err)
	if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), ".")
	m.total.WithLabelValues(version, code.String()).Inc()
	m.byMethod[path.Base(method)].WithLabelValues(version, code.String()).Inc()
}
