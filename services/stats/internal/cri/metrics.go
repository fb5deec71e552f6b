package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

// Metrics are the families of metrics that the runtime has of pods and containers, by name. They are shared: do not
// change them.
type Metrics struct {
	// Supported reports whether the runtime has any.
	Supported bool
	Families  []Family
}

// Family is one family of the runtime's metrics.
type Family struct {
	Name, Help string
	// Counter says that it only grows; otherwise it is a gauge.
	Counter bool
	// Labels are the names of the labels.
	Labels  []string
	Samples []Sample
}

// Sample is one metric of a family.
type Sample struct {
	// Values are those of the family's labels, in their order.
	Values []string
	Value  uint64
	// Time is zero if the runtime measured when it was asked.
	Time time.Time
}

// ReadMetrics asks for the runtime's metrics of pods and containers. A runtime that has none is no error. A metric
// without a descriptor, or with other labels than its descriptor names, is left out, as in the kubelet.
func (c *Client) ReadMetrics(ctx context.Context) (*Metrics, error) {
	described, err := c.runtime.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if status.Code(err) == codes.Unimplemented {
		return &Metrics{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the runtime does not describe its metrics: %w", err)
	}
	families := c.families(described.GetDescriptors())
	for pod, err := range c.lists.SandboxMetrics(ctx) {
		if status.Code(err) == codes.Unimplemented {
			return &Metrics{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the runtime does not list the metrics of pods: %w", err)
		}
		c.samples(families, pod.GetMetrics())
		for _, container := range pod.GetContainerMetrics() {
			c.samples(families, container.GetMetrics())
		}
	}
	m := &Metrics{Supported: true}
	for _, f := range families {
		if len(f.Samples) > 0 {
			m.Families = append(m.Families, *f)
		}
	}
	slices.SortFunc(m.Families, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return m, nil
}

// families are those that the runtime describes, by name. One with a name that no reader takes is left out.
func (c *Client) families(described []*runtimeapi.MetricDescriptor) map[string]*Family {
	families := map[string]*Family{}
	for _, d := range described {
		valid := model.LegacyValidation.IsValidMetricName(d.GetName()) &&
			!slices.ContainsFunc(d.GetLabelKeys(), func(l string) bool { return !model.LegacyValidation.IsValidLabelName(l) })
		if !valid {
			c.book.Add(readerrors.Runtime, "metrics", fmt.Errorf("a descriptor has the name %q and the labels %q",
				d.GetName(), d.GetLabelKeys()))
			continue
		}
		families[d.GetName()] = &Family{Name: d.GetName(), Help: d.GetHelp(), Labels: d.GetLabelKeys()}
	}
	return families
}

func (c *Client) samples(families map[string]*Family, metrics []*runtimeapi.Metric) {
	for _, m := range metrics {
		f := families[m.GetName()]
		if f == nil || len(m.GetLabelValues()) != len(f.Labels) {
			c.book.Add(readerrors.Runtime, "metrics", fmt.Errorf("metric %q with %d labels is not as described",
				m.GetName(), len(m.GetLabelValues())))
			continue
		}
		s := Sample{Values: m.GetLabelValues(), Value: m.GetValue().GetValue()}
		if m.GetTimestamp() != 0 {
			at, err := when(m.GetTimestamp())
			if err != nil {
				c.book.Add(readerrors.Runtime, "metrics", fmt.Errorf("metric %q: %w", m.GetName(), err))
				continue
			}
			s.Time = at
		}
		f.Counter = m.GetMetricType() == runtimeapi.MetricType_COUNTER
		f.Samples = append(f.Samples, s)
	}
}
