package cri

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

// answers is a runtime that answers with these, and an older one where they are nil.
type answers struct {
	grpc.ClientConnInterface

	stats       *runtimeapi.ListPodSandboxStatsResponse
	descriptors *runtimeapi.ListMetricDescriptorsResponse
	metrics     *runtimeapi.ListPodSandboxMetricsResponse
}

func (a answers) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	var message proto.Message
	switch method {
	case runtimeapi.RuntimeService_ListPodSandboxStats_FullMethodName:
		message = a.stats
	case runtimeapi.RuntimeService_ListMetricDescriptors_FullMethodName:
		message = a.descriptors
	case runtimeapi.RuntimeService_ListPodSandboxMetrics_FullMethodName:
		message = a.metrics
	}
	if message == nil || !message.ProtoReflect().IsValid() {
		return status.Error(codes.Unimplemented, "an older runtime")
	}
	proto.Merge(reply.(proto.Message), message)
	return nil
}

func client(a answers) *Client {
	return New(a, crilist.Options{}, readerrors.NewRecorder(slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// sandboxStats are those of one sandbox, "s", that has used processors so long.
func sandboxStats(total uint64, memory *runtimeapi.MemoryUsage) *runtimeapi.ListPodSandboxStatsResponse {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "s"},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:    &runtimeapi.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: number(total)},
			Memory: memory,
		},
	}}}
}

func TestARuntimeWithoutFiguresOfPods(t *testing.T) {
	c := client(answers{})
	if s, err := NewPodClient(c).Read(t.Context()); err != nil || s.Supported {
		t.Errorf("figures: %+v, %v", s, err)
	}
	if m, err := c.ReadMetrics(t.Context()); err != nil || m.Supported {
		t.Errorf("metrics: %+v, %v", m, err)
	}
}

// A runtime such as CRI-O has the total only; the rate is that since the last answer.
func TestTheRateIsThatSinceTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPodClient(client(answers{}))
		for i, step := range []struct {
			total uint64
			want  *runtimeapi.UInt64Value
		}{
			{1e9, nil},
			{6e9, number(5e8)},
			{1e9, nil}, // the container was replaced
			{1e9, number(0)},
		} {
			p.c = client(answers{stats: sandboxStats(step.total, nil)})
			s, err := p.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := s.Sandboxes["s"].GetLinux().GetCpu().GetUsageNanoCores()
			if (got == nil) != (step.want == nil) || got.GetValue() != step.want.GetValue() {
				t.Errorf("answer %d: %v nanocores, want %v", i, got, step.want)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func TestNonsenseIsNoFigure(t *testing.T) {
	p := NewPodClient(client(answers{stats: sandboxStats(math.MaxUint64, &runtimeapi.MemoryUsage{
		Timestamp: time.Now().Add(time.Hour).UnixNano(), WorkingSetBytes: number(1 << 63), UsageBytes: number(1 << 20),
	})}))
	s, err := p.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	linux := s.Sandboxes["s"].GetLinux()
	if linux.GetCpu().GetUsageCoreNanoSeconds() != nil || linux.GetMemory().GetWorkingSetBytes() != nil {
		t.Errorf("what cannot be: %v", linux)
	}
	if got := linux.GetMemory().GetUsageBytes().GetValue(); got != 1<<20 {
		t.Errorf("usage is %d", got)
	}
	if lead := time.Until(time.Unix(0, linux.GetMemory().GetTimestamp())); lead > maxClockLead {
		t.Errorf("the figures are %s in the future", lead)
	}
}

func TestMetricsAreAsDescribed(t *testing.T) {
	now := time.Now()
	metric := func(name string, at int64, labels ...string) *runtimeapi.Metric {
		return &runtimeapi.Metric{
			Name: name, Timestamp: at, LabelValues: labels, Value: number(7),
			MetricType: runtimeapi.MetricType_COUNTER,
		}
	}
	c := client(answers{
		descriptors: &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{
			{Name: "container_b", Help: "B.", LabelKeys: []string{"pod"}},
			{Name: "container_a", Help: "A.", LabelKeys: []string{"pod", "id"}},
			{Name: "never_measured", Help: "N."},
			{Name: "no name", Help: "X."},
			{Name: "container_c", LabelKeys: []string{"no-label"}},
		}},
		metrics: &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{{
			Metrics: []*runtimeapi.Metric{metric("container_b", 0, "web"), metric("container_b", 0), metric("unknown", 0)},
			ContainerMetrics: []*runtimeapi.ContainerMetrics{{Metrics: []*runtimeapi.Metric{
				metric("container_a", now.UnixNano(), "web", "1"),
				metric("container_a", now.Add(time.Hour).UnixNano(), "web", "2"),
				metric("container_c", 0, "x"),
			}}},
		}}},
	})
	m, err := c.ReadMetrics(t.Context())
	if err != nil || !m.Supported {
		t.Fatal(m, err)
	}
	if len(m.Families) != 2 || m.Families[0].Name != "container_a" || m.Families[1].Name != "container_b" {
		t.Fatalf("families: %+v", m.Families)
	}
	a, b := m.Families[0], m.Families[1]
	if len(a.Samples) != 1 || !a.Samples[0].Time.Equal(time.Unix(0, now.UnixNano())) || a.Samples[0].Values[1] != "1" {
		t.Errorf("container_a: %+v", a)
	}
	if len(b.Samples) != 1 || !b.Samples[0].Time.IsZero() || !b.Counter || b.Samples[0].Value != 7 {
		t.Errorf("container_b: %+v", b)
	}
}
