//go:build bench

package benches

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

var (
	rounds = flag.Int("rounds", 3, "how often each contender is measured, in turn")
	// The control plane is elsewhere on a real cluster.
	oneCore = flag.Bool("one-core", false, "give the node half of the processors, and the control plane the others")
	results = flag.String("results", "", "a folder for a file of each bench's samples, in JSON; empty writes none")
)

// contender is an agent that is measured.
type contender struct {
	name  string
	agent rig.Agent
	args  []string
	// build is another executable of microlet; empty is this one.
	build string
	// bare is no agent: the runtime alone is measured.
	bare bool
}

// run makes the contender what runs on the node. The node gets its agent back when the test ends.
func (c contender) run(t *testing.T) {
	t.Helper()
	switch {
	case c.bare:
		without(t)
	case c.build != "":
		switchToBuild(scene.Shared, t, c.build)
	default:
		scene.Shared.SwitchTo(t, c.agent, c.args...)
	}
}

// samples are what a bench has measured.
type samples struct {
	Bench string    `json:"bench"`
	Date  time.Time `json:"date"`
	// Version is that of the microlet that was measured.
	Version string `json:"version"`
	Kernel  string `json:"kernel"`
	Cores   int    `json:"cores"`
	// OneCore says that the node had half of the processors.
	OneCore    bool     `json:"oneCore,omitempty"`
	Contenders []string `json:"contenders"`
	Rows       []*row   `json:"rows"`
}

// row is one quantity.
type row struct {
	Name string `json:"name"`
	// Samples are one of each round, by the contender's name.
	Samples map[string][]float64 `json:"samples"`
}

func (s *samples) put(contender, name string, value float64) {
	i := slices.IndexFunc(s.Rows, func(r *row) bool { return r.Name == name })
	if i < 0 {
		i = len(s.Rows)
		s.Rows = append(s.Rows, &row{Name: name, Samples: map[string][]float64{}})
	}
	s.Rows[i].Samples[contender] = append(s.Rows[i].Samples[contender], value)
}

// compare measures contenders once, one after the other; the first is what the others are compared with.
func compare(t *testing.T, measure func(m *meter), contenders ...contender) {
	t.Helper()
	measureInRounds(t, 1, measure, contenders...)
}

// measureInRounds measures each contender in each round, so that an hour in which the machine is busy weighs on all.
func measureInRounds(t *testing.T, count int, measure func(m *meter), contenders ...contender) {
	t.Helper()
	s := &samples{Bench: t.Name(), Date: time.Now().UTC(), OneCore: *oneCore}
	for _, c := range contenders {
		s.Contenders = append(s.Contenders, c.name)
	}
	for i := range count {
		for _, c := range contenders {
			// What a round changes of the machine ends with it.
			t.Run(fmt.Sprintf("round %d, %s", i+1, c.name), func(t *testing.T) {
				c.run(t)
				measure(&meter{t: t, bare: c.bare, put: func(name string, value float64) {
					s.put(c.name, name, value)
					t.Logf("%s: %s: %.3f", c.name, name, value)
				}})
			})
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("medians of %d rounds on one machine, in one run (smallest to largest):\n%s", count, s.table())
	if err := s.write(t); err != nil {
		t.Error(err)
	}
}

// table is in Markdown. A row's ratios are those of the medians.
func (s *samples) table() string {
	first := s.Contenders[0]
	var b strings.Builder
	fmt.Fprintf(&b, "| what | %s |", strings.Join(s.Contenders, " | "))
	for _, name := range s.Contenders[1:] {
		fmt.Fprintf(&b, " %s / %s |", name, first)
	}
	fmt.Fprintf(&b, "\n|%s\n", strings.Repeat("---|", 2*len(s.Contenders)))
	for _, r := range s.Rows {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, name := range s.Contenders {
			fmt.Fprintf(&b, " %s |", cell(r.Samples[name]))
		}
		for _, name := range s.Contenders[1:] {
			if len(r.Samples[name]) == 0 || len(r.Samples[first]) == 0 {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %.2f |", median(r.Samples[name])/median(r.Samples[first]))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func cell(values []float64) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%.3f", values[0])
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", median(values), slices.Min(values), slices.Max(values))
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// write puts the samples into a file of the folder -results.
func (s *samples) write(t *testing.T) error {
	t.Helper()
	if *results == "" {
		return nil
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	processors, err := machine.Processors()
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(t.Context(), scene.Shared.Executable, "version", "--short").Output()
	if err != nil {
		return fmt.Errorf("ask microlet for its version: %w", err)
	}
	s.Version = strings.TrimSpace(string(version))
	s.Kernel, s.Cores = unix.ByteSliceToString(name.Release[:]), len(processors)
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*results, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*results, s.Bench+".json"), append(data, '\n'), 0o644)
}
