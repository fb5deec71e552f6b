package main

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Sizes in pixels. The width of a character holds for the usual fixed-width fonts; textLength makes it hold for all.
const (
	charWidth  = 7.2
	lineHeight = 18
	margin     = 16
	head       = 76 // title, legend and the axis
	indent     = 12
	plot       = 640 // the width of the time that the trace took
	barHeight  = 12
	aside      = 70 // for the duration behind the last bar
)

// Colors of the picture.
const (
	window = "#1e2430"
	plain  = "#c8d0dc"
	dim    = "#8a94a6"
	grid   = "#333c4d"
	failed = "#e06c75"
)

// colors of processes; those after them share the last one.
var colors = []string{"#61afef", "#98c379", "#e5c07b", "#c678dd", "#56b6c2", dim}

// canvas is a picture that is being drawn.
type canvas struct {
	strings.Builder
	services []string
	begin    time.Time
	took     time.Duration
	left     float64 // where the time begins
}

// draw returns the SVG of a trace.
func draw(t *node, pod string, least time.Duration) string {
	shown := rows(t, 0, least)
	c := &canvas{begin: t.Start, took: max(last(t).Sub(t.Start), time.Millisecond), services: services(t, nil)}
	widest := 0.0
	for _, r := range shown {
		widest = max(widest, float64(r.depth*indent)+charWidth*float64(utf8.RuneCountInString(label(r))))
	}
	c.left = margin + widest + 2*margin
	width, height := c.left+plot+aside, head+len(shown)*lineHeight+margin
	title := fmt.Sprintf("The start of pod %s: one trace of %d spans over %d processes", pod, size(t), len(c.services))
	if left := size(t) - len(shown); left > 0 {
		title += fmt.Sprintf("; %d that took less than %v are left out", left, least)
	}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d"`,
		width, height, width, height)
	fmt.Fprintln(c, ` font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="12">`)
	fmt.Fprintf(c, "<title>%s</title>\n", escape(title))
	fmt.Fprintf(c, "<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"%s\"/>\n", window)
	c.text(margin, 22, plain, title)
	c.legend()
	c.axis(height - margin)
	for i, r := range shown {
		c.row(r, head+i*lineHeight)
	}
	c.WriteString("</svg>\n")
	return c.String()
}

func (c *canvas) legend() {
	x := float64(margin)
	for i, s := range c.services {
		fmt.Fprintf(c, `<rect x="%.1f" y="34" width="12" height="12" rx="2" fill="%s"/>`+"\n", x, color(i))
		c.text(x+18, 44, plain, s)
		x += 18 + charWidth*float64(len(s)) + 2*margin
	}
}

// axis draws the times, at most ten.
func (c *canvas) axis(bottom int) {
	step := tick(c.took)
	for at := time.Duration(0); at <= c.took; at += step {
		x := c.x(c.begin.Add(at))
		fmt.Fprintf(c, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>`+"\n", x, head-6, x, bottom, grid)
		c.text(x-2, head-12, dim, at.String())
	}
}

// tick is the least round step of which there are at most ten.
func tick(took time.Duration) time.Duration {
	for unit := time.Millisecond; ; unit *= 10 {
		for _, factor := range []time.Duration{1, 2, 5} {
			if took <= 10*factor*unit {
				return factor * unit
			}
		}
	}
}

func (c *canvas) row(r row, y int) {
	fill := color(slices.Index(c.services, r.Service))
	c.text(margin+float64(r.depth*indent), y+13, plain, label(r))
	took := r.End.Sub(r.Start)
	from := c.x(r.Start)
	width := max(plot*took.Seconds()/c.took.Seconds(), 1.5)
	fmt.Fprintf(c, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s"><title>%s</title></rect>`+"\n",
		from, y+3, width, barHeight, fill, escape(tooltip(r)))
	shade := dim
	if r.Error != "" {
		shade = failed
	}
	c.text(from+width+5, y+13, shade, rounded(took).String())
}

// rounded is a duration with its significant digits.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}

// label is the name of a span, and what it is about: a container, the reason of an Event, the object of a request.
func label(r row) string {
	name := strings.TrimPrefix(r.Name, "runtime.v1.")
	for _, key := range []string{"k8s.container.name", "microlet.event.reason"} {
		if v := r.Attributes[key]; v != "" {
			return name + " " + v
		}
	}
	if u, err := url.Parse(r.Attributes["url.full"]); err == nil {
		if _, object, found := strings.Cut(u.Path, "/namespaces/"); found {
			_, object, _ = strings.Cut(object, "/")
			return name + " " + object
		}
	}
	return name
}

// tooltip is what a reader sees who points at a span.
func tooltip(r row) string {
	text := r.Service + ": " + r.Name
	for _, key := range []string{
		"container.image.name", "microlet.probe.kind", "microlet.probe.result", "http.response.status_code",
	} {
		if v := r.Attributes[key]; v != "" {
			text += "\n" + key + " = " + v
		}
	}
	if r.Error != "" {
		text += "\nfailed: " + r.Error
	}
	return text
}

// x is where a time is.
func (c *canvas) x(at time.Time) float64 {
	return c.left + plot*at.Sub(c.begin).Seconds()/c.took.Seconds()
}

func (c *canvas) text(x float64, y int, color, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%d" fill="%s" textLength="%.1f">%s</text>`+"\n", x, y, color,
		charWidth*float64(utf8.RuneCountInString(text)), escape(text))
}

func color(i int) string { return colors[min(i, len(colors)-1)] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes all
	return b.String()
}
