package top

import (
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// ParseSample reads what a process serves at /metrics, and keeps what is shown. A histogram counts its observations.
func ParseSample(r io.Reader) (Sample, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	sample := Sample{}
	keep := func(name string) {
		family := families[name]
		if family == nil {
			return
		}
		for _, m := range family.GetMetric() {
			sample[name] += value(family.GetType(), m)
		}
	}
	keep(cpuMetric)
	for _, figures := range [][]figure{rates, waiting} {
		for _, f := range figures {
			keep(f.metric)
		}
	}
	return sample, nil
}

func value(t dto.MetricType, m *dto.Metric) float64 {
	switch t {
	case dto.MetricType_COUNTER:
		return m.GetCounter().GetValue()
	case dto.MetricType_GAUGE:
		return m.GetGauge().GetValue()
	case dto.MetricType_HISTOGRAM:
		return float64(m.GetHistogram().GetSampleCount())
	case dto.MetricType_SUMMARY:
		return float64(m.GetSummary().GetSampleCount())
	}
	return m.GetUntyped().GetValue()
}
