package exposition

import (
	"slices"
	"strings"

	"github.com/google/cadvisor/lib/model"

	"github.com/microlet/microlet/services/stats/internal/cri"
)

// Runtime writes /metrics/cadvisor as the kubelet has it with the feature gate PodAndContainerStatsFromCRI: the metrics
// of the machine, and those of pods and containers that the runtime measures. It returns the sink's error.
func Runtime(m *cri.Metrics, machine *model.MachineInfo, sink func([]byte) error) error {
	w := &writer{buf: make([]byte, 0, partSize+4096), sink: sink}
	for i := range m.Families {
		f := &m.Families[i]
		kind := gauge
		if f.Counter {
			kind = counter
		}
		w.family(f.Name, kind, internal+helpEscaper.Replace(clean(f.Help)))
		order := labelOrder(f.Labels)
		written := make(map[string]bool, len(f.Samples))
		for _, s := range f.Samples {
			labels := make([]string, len(f.Labels))
			for j, from := range order {
				labels[j] = label(f.Labels[from], s.Values[from])
			}
			text := strings.Join(labels, ",")
			if written[text] { // of two alike the first counts: a reader refuses a page that has both
				continue
			}
			written[text] = true
			w.metric(text, float64(s.Value), s.Time)
		}
	}
	w.flush()
	if w.err != nil {
		return w.err
	}
	text, err := machineText(machine)
	if err != nil {
		return err
	}
	return sink(text)
}

// labelOrder returns the indices of the labels by name, which is the order in which the kubelet writes them.
func labelOrder(names []string) []int {
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(names[a], names[b]) })
	return order
}

// internal says how stable these families are, as the kubelet says it.
const internal = "[INTERNAL] "

// helpEscaper escapes the help of a family.
var helpEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
