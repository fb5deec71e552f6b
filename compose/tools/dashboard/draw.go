package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-analyze/charts"
)

// Sizes in pixels.
const (
	width      = 1500
	columns    = 24 // of Grafana's grid
	unitHeight = 30 // of Grafana's grid
	gap        = 8
	titleSize  = 12
	textSize   = 9
	figureSize = 30
	inset      = 24 // of a title's baseline
	mostNames  = 10 // in a legend: more would leave no room for the curves
	headroom   = 1.1
)

// draw returns the SVG of the dashboard.
func draw(ctx context.Context, b board, from *source) ([]byte, error) {
	bottom := 0
	for _, p := range b.Panels {
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
	}
	theme := charts.GetTheme(charts.ThemeGrafana)
	canvas := charts.NewPainter(charts.PainterOptions{
		OutputFormat: charts.ChartOutputSVG, Width: width, Height: bottom*unitHeight + gap, Theme: theme,
	})
	canvas.FilledRect(0, 0, width, bottom*unitHeight+gap, theme.GetBackgroundColor(), charts.ColorTransparent, 0)
	for _, p := range b.Panels {
		series, err := from.query(ctx, p)
		if err != nil {
			return nil, err
		}
		if err := p.draw(canvas, theme, from.moments(), series); err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
	}
	return canvas.Bytes()
}

// draw draws the panel in its place of the grid.
func (p panel) draw(canvas *charts.Painter, theme charts.ColorPalette, at []time.Time, all []series) error {
	g := p.GridPos
	left, top := g.X*width/columns, g.Y*unitHeight
	box := charts.NewBox(left+gap, top+gap, (g.X+g.W)*width/columns, top+g.H*unitHeight)
	place := canvas.Child(charts.PainterBoxOption(box))
	title := charts.FontStyle{FontSize: titleSize, FontColor: theme.GetTitleTextColor()}
	if p.Type == "row" {
		place.Text(p.Title, 0, inset-gap, 0, title)
		return nil
	}
	place.FilledRect(0, 0, box.Width(), box.Height(), charts.ColorTransparent, theme.GetAxisSplitLineColor(), 1)
	place.Text(p.Title, gap, inset, 0, title)
	switch {
	case len(all) == 0:
		place.Text("No data", gap, 2*inset, 0, charts.FontStyle{FontSize: textSize, FontColor: theme.GetXAxisTextColor()})
		return nil
	case p.Type == "stat":
		place.Text(p.figure(all), gap, box.Height()-inset, 0,
			charts.FontStyle{FontSize: figureSize, FontColor: theme.GetSeriesColor(0)})
		return nil
	default:
		area := charts.NewBox(box.Left+gap, box.Top+inset+gap, box.Right-gap, box.Bottom-gap)
		return p.curves(canvas.Child(charts.PainterBoxOption(area)), at, all)
	}
}

// figure is the last value of the first series, or its name where the panel asks for that.
func (p panel) figure(all []series) string {
	if p.Options.TextMode == "name" {
		return all[0].name
	}
	values := all[0].values
	for i := len(values) - 1; i >= 0; i-- {
		if !math.IsNaN(values[i]) {
			return p.format(values[i])
		}
	}
	return "No data"
}

// curves draws the series over time.
func (p panel) curves(place *charts.Painter, at []time.Time, all []series) error {
	rows, names, top := make([][]float64, len(all)), make([]string, len(all)), 0.0
	for i, s := range all {
		names[i] = s.name
		rows[i] = make([]float64, len(s.values))
		for j, v := range s.values {
			if rows[i][j] = v; math.IsNaN(v) {
				rows[i][j] = charts.GetNullValue()
			} else {
				top = max(top, v)
			}
		}
	}
	labels := make([]string, len(at))
	for i, t := range at {
		labels[i] = t.Format(time.TimeOnly)
	}
	if top *= headroom; top == 0 {
		top = 1
	}
	font := charts.FontStyle{FontSize: textSize}
	return place.LineChart(charts.LineChartOption{
		SeriesList: charts.NewSeriesListLine(rows),
		XAxis: charts.XAxisOption{
			Labels: labels, LabelCount: 6, LabelFontStyle: font, BoundaryGap: charts.Ptr(false),
		},
		YAxis:           []charts.YAxisOption{{Min: charts.Ptr(0.0), Max: &top, LabelCount: 5, LabelFontStyle: font}},
		Legend:          charts.LegendOption{SeriesNames: names, Show: charts.Ptr(len(names) <= mostNames), FontStyle: font},
		Symbol:          charts.Symbol{Shape: charts.SymbolNone},
		LineStrokeWidth: 1.2,
		ValueFormatter:  p.format,
	})
}

// format writes a value in the panel's unit.
func (p panel) format(v float64) string {
	switch p.FieldConfig.Defaults.Unit {
	case "bytes":
		return humanize.IBytes(uint64(max(v, 0)))
	case "s":
		return humanize.SIWithDigits(v, 1, "s")
	default:
		return humanize.FtoaWithDigits(v, 3)
	}
}
