// Package span is a span of a trace as a line of JSON, for programs that need no OTLP.
package span

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Span is one span. The ids are hexadecimal, as in a W3C traceparent.
type Span struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Trace   string `json:"trace"`
	ID      string `json:"id"`
	Parent  string `json:"parent,omitempty"`
	// Start and End are by the clock of who made the span.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Error is why it failed; empty if it did not.
	Error      string            `json:"error,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Resource are the attributes of who made the span.
	Resource map[string]string `json:"resource,omitempty"`
}

// Read returns the spans of a file of lines. A last line without an end is still being written, and is left out.
func Read(from io.Reader) ([]Span, error) {
	var spans []Span
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return spans, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read spans: %w", err)
		}
		var s Span
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("read span %d: %w", len(spans)+1, err)
		}
		spans = append(spans, s)
	}
}
