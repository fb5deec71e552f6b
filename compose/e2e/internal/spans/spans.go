// Package spans judges the traces that the rig's collector has passed on.
package spans

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Names of spans that a pod's start has.
const (
	Sync      = "syncPod"
	Probe     = "doProbe"
	Delivery  = "deliverEvent"
	KindOfPod = "k8s.pod.uid"
)

// Span is a line of the receiver.
type Span struct {
	Service    string            `json:"service"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Trace      string            `json:"trace"`
	ID         string            `json:"id"`
	Parent     string            `json:"parent"`
	Start      time.Time         `json:"start"`
	End        time.Time         `json:"end"`
	Error      string            `json:"error"`
	Attributes map[string]string `json:"attributes"`
	Resource   map[string]string `json:"resource"`
}

// Process is the process that made the span, as far as the span says.
func (s Span) Process() string { return strings.TrimSpace(s.Service + " " + s.Resource["process.pid"]) }

// Read returns the spans of a file, each of them once, though a sender that had no answer has sent it again.
func Read(path string) ([]Span, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last one may be half written
	var spans []Span
	seen := map[string]bool{}
	for line := range bytes.Lines(whole) {
		var s Span
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", path, err, line)
		}
		if !seen[s.Trace+s.ID] {
			seen[s.Trace+s.ID] = true
			spans = append(spans, s)
		}
	}
	return spans, nil
}

// OfPod returns the traces that begin with a sync of a pod, in the order of their begin.
func OfPod(all []Span, uid string) []Trace {
	var begins []Span
	for _, s := range all {
		if s.Name == Sync && s.Parent == "" && s.Attributes[KindOfPod] == uid {
			begins = append(begins, s)
		}
	}
	slices.SortFunc(begins, func(a, b Span) int { return a.Start.Compare(b.Start) })
	var traces []Trace
	for _, b := range begins {
		traces = append(traces, slices.DeleteFunc(slices.Clone(all), func(s Span) bool { return s.Trace != b.Trace }))
	}
	return traces
}

// Trace are the spans of one trace.
type Trace []Span

// Processes are those that have a share in it, and how many spans each has made.
func (t Trace) Processes() map[string]int {
	n := map[string]int{}
	for _, s := range t {
		n[s.Process()]++
	}
	return n
}

// Of returns the spans of a service and a name; each of them may be empty, for any.
func (t Trace) Of(service, name string) Trace {
	return slices.DeleteFunc(slices.Clone(t), func(s Span) bool {
		return service != "" && s.Service != service || name != "" && s.Name != name
	})
}

// Orphans are the spans whose parent is not there.
func (t Trace) Orphans() Trace {
	return slices.DeleteFunc(slices.Clone(t), func(s Span) bool { return s.Parent == "" || t.span(s.Parent) != nil })
}

func (t Trace) span(id string) *Span {
	if i := slices.IndexFunc(t, func(s Span) bool { return s.ID == id }); i >= 0 {
		return &t[i]
	}
	return nil
}

// callers are the services that may have called a span of kind server, and parents those that a span of a name is
// begun in.
var (
	callers = map[string][]string{"containerd": {"podsync"}, "podsync": {"prober"}}
	parents = map[string]string{Probe: Sync, Delivery: Sync}
)

// Wrong returns what cannot be in a trace, the one of a pod's start among them: several begins, a span before the one
// that it was begun in, a call without a caller, a probe or an Event of no sync.
func (t Trace) Wrong() []string {
	var wrong []string
	begins := 0
	for _, s := range t {
		if s.Parent == "" {
			begins++
			continue
		}
		p := t.span(s.Parent)
		if p == nil {
			continue
		}
		report := func(what string) {
			wrong = append(wrong, fmt.Sprintf("%s of %s is %s %s of %s", s.Name, s.Service, what, p.Name, p.Service))
		}
		if s.Start.Before(p.Start) {
			report("before")
		}
		if s.Kind == "server" && (p.Kind != "client" || !slices.Contains(callers[s.Service], p.Service)) {
			report("called in")
		}
		if s.Kind != "server" && s.Service != p.Service && parents[s.Name] == "" {
			report("of another service than")
		}
		if want := parents[s.Name]; want != "" && p.Name != want {
			report("in")
		}
	}
	if begins != 1 {
		wrong = append(wrong, fmt.Sprintf("it begins %d times", begins))
	}
	return wrong
}

// String describes each span in a line.
func (t Trace) String() string {
	var b strings.Builder
	for _, s := range t {
		fmt.Fprintf(&b, "%s %s %s (%s) in %s\n", s.ID, s.Process(), s.Name, s.Kind, s.Parent)
	}
	return b.String()
}
