package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// points is how many moments a curve has.
const points = 120

// series is a curve: a value for each moment of the source, NaN where there is none.
type series struct {
	name   string
	values []float64
}

// source answers the queries of a dashboard from a Prometheus.
type source struct {
	api      promapi.API
	interval time.Duration // $__rate_interval
	period   promapi.Range
}

func newSource(url string, last, interval time.Duration) (*source, error) {
	client, err := api.NewClient(api.Config{Address: url})
	if err != nil {
		return nil, fmt.Errorf("-prometheus=%s: %w", url, err)
	}
	step := last / points
	if step < time.Second {
		return nil, fmt.Errorf("-last=%v: give at least %v", last, points*time.Second)
	}
	end := time.Now().Truncate(time.Second)
	return &source{promapi.NewAPI(client), interval, promapi.Range{Start: end.Add(-last), End: end, Step: step}}, nil
}

// moments are the times of the curves' values.
func (s *source) moments() []time.Time {
	var at []time.Time
	for t := s.period.Start; !t.After(s.period.End); t = t.Add(s.period.Step) {
		at = append(at, t)
	}
	return at
}

// query returns the series that the targets of the panel have.
func (s *source) query(ctx context.Context, p panel) ([]series, error) {
	var all []series
	for _, t := range p.Targets {
		variables := strings.NewReplacer("$instance", ".*", "$cluster", ".*",
			"$__rate_interval", model.Duration(s.interval).String())
		query := variables.Replace(t.Expr)
		value, _, _, err := s.api.QueryRange(ctx, query, s.period)
		if err != nil {
			return nil, fmt.Errorf("panel %q: query %q: %w", p.Title, query, err)
		}
		matrix, ok := value.(model.Matrix)
		if !ok {
			return nil, fmt.Errorf("panel %q: query %q: the answer is a %v and no range", p.Title, query, value.Type())
		}
		for _, stream := range matrix {
			all = append(all, series{legend(t.LegendFormat, stream.Metric), s.align(stream.Values)})
		}
	}
	return all, nil
}

// align puts the samples where their moments are.
func (s *source) align(samples []model.SamplePair) []float64 {
	values := make([]float64, len(s.moments()))
	for i := range values {
		values[i] = math.NaN()
	}
	for _, sample := range samples {
		i := int(math.Round(float64(sample.Timestamp.Time().Sub(s.period.Start)) / float64(s.period.Step)))
		if i >= 0 && i < len(values) && !math.IsInf(float64(sample.Value), 0) {
			values[i] = float64(sample.Value)
		}
	}
	return values
}

var label = regexp.MustCompile(`\{\{\s*([a-zA-Z0-9_]+)\s*\}\}`)

// legend fills a template such as "{{instance}} p99" with the labels of a series.
func legend(format string, labels model.Metric) string {
	name := label.ReplaceAllStringFunc(format, func(match string) string {
		return string(labels[model.LabelName(label.FindStringSubmatch(match)[1])])
	})
	return strings.TrimSpace(name)
}
