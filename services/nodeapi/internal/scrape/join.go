package scrape

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/microlet/microlet/services/internal/service"
)

// The label for what each process has: its own figures, Go's, its requests.
const (
	serviceLabel = "service"
	replicaLabel = "replica" // not of the first
)

// family is what a process said under one name, as the text that nodeapi writes. A series takes a tenth of what it
// takes parsed.
type family struct {
	header []byte // "# HELP" and "# TYPE"
	kind   dto.MetricType
	text   []byte
	series []series
}

// series is a part of the text, up to end.
type series struct {
	identity uint64
	end      int
}

var identities = maphash.MakeSeed()

// take returns those of a process's families that the filter takes and that are the process's to give, and the name of
// one that is not.
func (p process) take(said map[string]*dto.MetricFamily, f Filter) (own map[string]family, foreign string, err error) {
	own = map[string]family{}
	for name, all := range said {
		if !f.take(name) || len(all.GetMetric()) == 0 {
			continue
		}
		of, owned, named := owner(name)
		if owned && of != p.role {
			foreign = name
			continue
		}
		if own[name], err = p.write(all, named); err != nil {
			return nil, "", fmt.Errorf("write metric %s: %w", name, err)
		}
	}
	return own, foreign, nil
}

// write writes a family, with the name of its process if it is to be named.
func (p process) write(all *dto.MetricFamily, named bool) (family, error) {
	f := family{kind: all.GetType()}
	var text, one bytes.Buffer
	for _, m := range all.GetMetric() {
		if named {
			p.label(m)
		}
		of := dto.MetricFamily{Name: all.Name, Type: all.Type, Metric: []*dto.Metric{m}}
		if f.header == nil {
			of.Help = all.Help
		}
		one.Reset()
		if _, err := expfmt.MetricFamilyToText(&one, &of); err != nil {
			return f, err
		}
		header := headerOf(one.Bytes())
		if f.header == nil {
			f.header = bytes.Clone(header)
		}
		text.Write(one.Bytes()[len(header):])
		f.series = append(f.series, series{identity(all.GetName(), m), text.Len()})
	}
	f.text = bytes.Clone(text.Bytes())
	return f, nil
}

// headerOf returns the comments that a text begins with.
func headerOf(text []byte) []byte {
	n := 0
	for n < len(text) && text[n] == '#' {
		n += bytes.IndexByte(text[n:], '\n') + 1
	}
	return text[:n]
}

// label names the process that a series is of, whatever the process says.
func (p process) label(m *dto.Metric) {
	m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool {
		return l.GetName() == serviceLabel || l.GetName() == replicaLabel
	})
	add := func(name, value string) { m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value}) }
	add(serviceLabel, string(p.role))
	if p.replica != service.DefaultReplica {
		add(replicaLabel, p.replica)
	}
}

// identity of a series; services write labels in order of their names.
func identity(name string, m *dto.Metric) uint64 {
	var h maphash.Hash
	h.SetSeed(identities)
	write := func(s string) {
		_, _ = h.WriteString(s)
		_ = h.WriteByte(0)
	}
	write(name)
	for _, l := range m.GetLabel() {
		write(l.GetName())
		write(l.GetValue())
	}
	return h.Sum64()
}

// join writes each family once, with what the processes say of it in their order. Of two equal series, the one of the
// process that comes first stays.
//
// A family of which processes give different types has none: no process can hide what another one says.
func join(said []map[string]family) []byte {
	names := map[string]struct{}{}
	for _, families := range said {
		for name := range families {
			names[name] = struct{}{}
		}
	}
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var of []family
		for _, families := range said {
			if f, ok := families[name]; ok {
				of = append(of, f)
			}
		}
		if slices.ContainsFunc(of, func(f family) bool { return f.kind != of[0].kind }) {
			fmt.Fprintf(&out, "# TYPE %s untyped\n", name)
		} else {
			out.Write(of[0].header)
		}
		seen := map[uint64]struct{}{}
		for _, f := range of {
			start := 0
			for _, s := range f.series {
				if _, again := seen[s.identity]; !again {
					seen[s.identity] = struct{}{}
					out.Write(f.text[start:s.end])
				}
				start = s.end
			}
		}
	}
	return out.Bytes()
}
