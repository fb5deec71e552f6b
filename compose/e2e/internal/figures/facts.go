package figures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Facts are what an answer says, by path.
type Facts map[string]Fact

// Fact is a number or a text.
type Fact struct {
	// Text is what a fact that is no number says. It is empty for a number.
	Text   string
	Number float64
	// At is when a number was taken, if the answer says so.
	At time.Time
}

// String is the fact for people.
func (f Fact) String() string {
	if f.Text != "" {
		return f.Text
	}
	return strconv.FormatFloat(f.Number, 'f', -1, 64)
}

// Take returns the facts whose path the function takes.
func (f Facts) Take(take func(path string) bool) Facts {
	some := Facts{}
	for path, fact := range f {
		if take(path) {
			some[path] = fact
		}
	}
	return some
}

// Summary reads a summary. Members of lists are named by their pod, namespace/name, or by their name.
func Summary(data []byte) (Facts, error) {
	var root any
	if err := json.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("read summary: %w", err)
	}
	f := Facts{}
	return f, f.walk("", root, time.Time{})
}

// walk adds what is below the path. Numbers are as old as the time beside them, or above them.
func (f Facts) walk(path string, value any, at time.Time) error {
	switch v := value.(type) {
	case map[string]any:
		if text, is := v["time"].(string); is {
			t, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return fmt.Errorf("%s.time: %w", path, err)
			}
			at = t
		}
		for name, member := range v {
			below := name
			if path != "" {
				below = path + "." + name
			}
			if err := f.walk(below, member, at); err != nil {
				return err
			}
		}
	case []any:
		for i, member := range v {
			below := path + "[" + nameOf(member, i) + "]"
			if err := f.walk(below, member, at); err != nil {
				return err
			}
		}
	case float64:
		return f.add(path, Fact{Number: v, At: at})
	case string:
		return f.add(path, Fact{Text: v})
	case nil:
		return f.add(path, Fact{Text: "null"})
	case bool:
		return f.add(path, Fact{Text: strconv.FormatBool(v)})
	}
	return nil
}

// add refuses what is said twice.
func (f Facts) add(path string, fact Fact) error {
	if before, twice := f[path]; twice {
		return fmt.Errorf("%s is %s, and also %s", path, before, fact)
	}
	f[path] = fact
	return nil
}

// nameOf names a member of a list.
func nameOf(member any, index int) string {
	object, is := member.(map[string]any)
	if !is {
		return strconv.Itoa(index)
	}
	if pod, is := object["podRef"].(map[string]any); is {
		return fmt.Sprintf("%v/%v", pod["namespace"], pod["name"])
	}
	if name, is := object["name"].(string); is {
		return name
	}
	return strconv.Itoa(index)
}

// Metrics reads a page of metrics as strictly as Prometheus does: a page with a series that is there twice, or with
// metrics of a family in two places, is an error. The facts of a family besides its series are "TYPE", "HELP" and
// "timestamps", which reports whether its samples have times of their own.
func Metrics(text []byte) (Facts, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	f := Facts{}
	for name, family := range families {
		times := 0
		for _, m := range family.GetMetric() {
			number, err := numberOf(family.GetType(), m)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			fact := Fact{Number: number}
			if m.TimestampMs != nil {
				times++
				fact.At = time.UnixMilli(m.GetTimestampMs())
			}
			if err := f.add(name+labels(m.GetLabel()), fact); err != nil {
				return nil, err
			}
		}
		stamped := "some"
		switch times {
		case 0:
			stamped = "none"
		case len(family.GetMetric()):
			stamped = "all"
		}
		f["TYPE "+name] = Fact{Text: family.GetType().String()}
		f["HELP "+name] = Fact{Text: family.GetHelp()}
		f["timestamps "+name] = Fact{Text: stamped}
	}
	return f, nil
}

// numberOf is the value of a metric. A page of figures has no histograms.
func numberOf(kind dto.MetricType, m *dto.Metric) (float64, error) {
	switch kind {
	case dto.MetricType_COUNTER:
		return m.GetCounter().GetValue(), nil
	case dto.MetricType_GAUGE:
		return m.GetGauge().GetValue(), nil
	case dto.MetricType_UNTYPED:
		return m.GetUntyped().GetValue(), nil
	default:
		return 0, fmt.Errorf("a %s", kind)
	}
}

// labels are those of a series, in order of their names.
func labels(pairs []*dto.LabelPair) string {
	texts := make([]string, 0, len(pairs))
	for _, p := range pairs {
		texts = append(texts, fmt.Sprintf("%s=%q", p.GetName(), p.GetValue()))
	}
	slices.Sort(texts)
	return "{" + strings.Join(texts, ",") + "}"
}
