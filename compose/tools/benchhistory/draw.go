package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-analyze/charts"
)

// The picture's size, in pixels.
const (
	width  = 960
	height = 480
)

// drawn are the rows of the picture, with the names that it gives them.
var drawn = []struct{ row, name string }{
	{"one pod, created to Ready, p50 (s)", "one pod"},
	{"50 pods at once, until all are Ready (s)", "50 pods, all"},
	{"50 pods at once, created to Ready, p50 (s)", "50 pods, p50"},
	{"50 pods deleted at once, until all are gone (s)", "50 deleted"},
	{"CPU of the agent for starting 50 pods (s)", "CPU of 50 starts"},
	{"CPU idle with 60 pods (cores)", "CPU idle"},
	{"memory (PSS) with 60 pods (MiB)", "memory"},
}

// draw draws the ratios of the second contender to the first. Runs whose node had half of the processors are left out.
func draw(runs []past) ([]byte, error) {
	runs = slices.DeleteFunc(slices.Clone(runs), func(p past) bool { return p.OneCore })
	if len(runs) == 0 {
		return nil, errors.New("it has no run of a node with all processors")
	}
	var labels, names []string
	for _, p := range runs {
		labels = append(labels, fmt.Sprintf("%s %s", p.Date.Format("2006-01-02"), p.Version))
	}
	var lines [][]float64
	for _, d := range drawn {
		line := make([]float64, len(runs))
		for i, p := range runs {
			line[i] = ratio(p, d.row)
		}
		lines, names = append(lines, line), append(names, d.name)
	}
	last := runs[len(runs)-1]
	painter := charts.NewPainter(charts.PainterOptions{
		OutputFormat: charts.ChartOutputSVG, Width: width, Height: height, Theme: charts.GetTheme(charts.ThemeLight),
	})
	err := painter.LineChart(charts.LineChartOption{
		SeriesList: charts.NewSeriesListLine(lines),
		Title:      charts.TitleOption{Text: strings.Join([]string{last.Contenders[1], last.Contenders[0]}, " / ")},
		Padding:    charts.NewBoxEqual(20),
		XAxis:      charts.XAxisOption{Labels: labels},
		YAxis:      []charts.YAxisOption{{Min: charts.Ptr(0.0)}},
		Legend:     charts.LegendOption{SeriesNames: names, Offset: charts.OffsetStr{Top: "30"}},
		Symbol:     charts.Symbol{Shape: charts.SymbolCircle},
	})
	if err != nil {
		return nil, err
	}
	return painter.Bytes()
}

// ratio is the second contender's median by the first's, or a gap.
func ratio(p past, row string) float64 {
	i := slices.IndexFunc(p.Rows, func(m median) bool { return m.Name == row })
	if i < 0 {
		return charts.GetNullValue()
	}
	of, by := p.Rows[i].Medians[p.Contenders[1]], p.Rows[i].Medians[p.Contenders[0]]
	if by == 0 {
		return charts.GetNullValue()
	}
	return of / by
}
