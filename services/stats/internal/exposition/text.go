// Package exposition writes the pages of metrics that the kubelet serves, in Prometheus' text format.
//
// A page of a node with a hundred pods has tens of thousands of lines, of which prometheus/client_golang would make as
// many objects, and cAdvisor's collector several times that. Here a page is written straight from what was measured,
// in parts that its reader takes one after the other. TestCadvisorIsTheLibrarys compares every family, label and value
// with those of cAdvisor's own collector.
package exposition

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// partSize is when a part is handed on.
const partSize = 32 << 10

// writer writes metrics. Its first error ends it: nothing is written after that.
type writer struct {
	buf  []byte
	sink func([]byte) error
	err  error

	// name of the family that is being written, its kind and help, and whether its header is.
	name, kind, help string
	begun            bool
}

// The kinds of metrics.
const (
	counter = "counter"
	gauge   = "gauge"
)

// family begins a family. Its header is written with its first metric, since a family without any has none.
func (w *writer) family(name, kind, help string) {
	w.name, w.kind, w.help, w.begun = name, kind, help, false
}

// header writes the family's header unless it is there.
func (w *writer) header() {
	if w.begun {
		return
	}
	w.begun = true
	w.buf = append(append(w.buf, "# HELP "...), w.name...)
	w.buf = append(append(append(w.buf, ' '), w.help...), "\n# TYPE "...)
	w.buf = append(append(w.buf, w.name...), ' ')
	w.buf = append(append(w.buf, w.kind...), '\n')
}

// metric writes one metric of the family: labels as Prometheus has them between braces, and the time unless zero.
func (w *writer) metric(labels string, value float64, at time.Time) {
	w.labelled(labels, "", value, at)
}

// labelled writes a metric with labels that come in two parts.
func (w *writer) labelled(labels, more string, value float64, at time.Time) {
	if w.err != nil {
		return
	}
	w.header()
	w.buf = append(w.buf, w.name...)
	if labels != "" || more != "" {
		w.buf = append(append(w.buf, '{'), labels...)
		if labels != "" && more != "" {
			w.buf = append(w.buf, ',')
		}
		w.buf = append(append(w.buf, more...), '}')
	}
	w.buf = append(w.buf, ' ')
	w.buf = appendValue(w.buf, value)
	if !at.IsZero() {
		w.buf = strconv.AppendInt(append(w.buf, ' '), at.UnixMilli(), 10)
	}
	w.buf = append(w.buf, '\n')
	if len(w.buf) >= partSize {
		w.flush()
	}
}

// flush hands on what there is.
func (w *writer) flush() {
	if w.err == nil && len(w.buf) > 0 {
		w.err = w.sink(w.buf)
	}
	w.buf = w.buf[:0]
}

// appendValue writes a number as Prometheus does.
func appendValue(to []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(to, "NaN"...)
	case math.IsInf(v, 1):
		return append(to, "+Inf"...)
	case math.IsInf(v, -1):
		return append(to, "-Inf"...)
	}
	return strconv.AppendFloat(to, v, 'g', -1, 64)
}

// escaper escapes the value of a label.
var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// label is one label with its value.
func label(name, value string) string { return name + `="` + escaper.Replace(clean(value)) + `"` }

// clean makes a value one that a reader takes: text in UTF-8.
func clean(value string) string { return strings.ToValidUTF8(value, "\uFFFD") }

// seconds are so many nanoseconds.
func seconds(nanoseconds uint64) float64 { return float64(nanoseconds) / float64(time.Second) }
