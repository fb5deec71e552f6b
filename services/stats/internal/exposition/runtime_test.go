package exposition

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/model"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"

	"github.com/microlet/microlet/services/stats/internal/cri"
)

func TestRuntimePage(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	m := &cri.Metrics{Supported: true, Families: []cri.Family{
		{Name: "container_a", Help: "Two\nlines \\ and more.", Counter: true, Labels: []string{"pod", "image"},
			Samples: []cri.Sample{
				{Values: []string{"web", "a \"quoted\"\nname"}, Value: 7, Time: at},
				{Values: []string{"web", "a \"quoted\"\nname"}, Value: 8},
				{Values: []string{"db", ""}, Value: 9},
			}},
		{Name: "container_b", Help: "B.", Samples: []cri.Sample{{Value: 1}}},
	}}
	var text bytes.Buffer
	sink := func(part []byte) error {
		text.Write(part)
		return nil
	}
	if err := Runtime(m, &model.MachineInfo{NumCores: 2}, sink); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(promodel.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		t.Fatal(err)
	}
	a := families["container_a"]
	if a.GetType() != dto.MetricType_COUNTER || a.GetHelp() != "[INTERNAL] "+m.Families[0].Help ||
		len(a.GetMetric()) != 2 {
		t.Fatalf("container_a: %v", a)
	}
	first := a.GetMetric()[0]
	if first.GetCounter().GetValue() != 7 || first.GetTimestampMs() != at.UnixMilli() ||
		first.GetLabel()[0].GetValue() != m.Families[0].Samples[0].Values[1] {
		t.Errorf("its first metric: %v", first)
	}
	if b := families["container_b"]; b.GetType() != dto.MetricType_GAUGE || b.GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("container_b: %v", b)
	}
	if got := families["machine_cpu_cores"].GetMetric(); len(got) != 1 || got[0].GetGauge().GetValue() != 2 {
		t.Errorf("machine_cpu_cores: %v", got)
	}
}
