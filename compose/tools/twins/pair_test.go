package twins

import (
	_ "embed"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// Pair is a function of the kubelet and ours.
type Pair[In, Out any] struct {
	Name     string
	Generate func(*Source) In
	// Upstream drives the kubelet's function, Ours our own. Neither changes the input. What they return is
	// compared with reflect.DeepEqual, so both bring it to one form.
	Upstream, Ours func(In) Out
	// Differences are those that differences.explained names.
	Differences []Difference[In, Out]
	// Branches names what the kubelet did with an input, and Wanted all that it is to have done with some input.
	Branches func(In, Out) []string
	Wanted   []string
	// Break is the positive control: it makes of an outcome of ours what a plausible fault would.
	Break func(In, *Out)
	// Show is how an input is printed; nil stands for YAML.
	Show func(In) string
}

// Difference is one that is known. It says what ours does, so an outcome that is neither the kubelet's nor this one
// still fails.
type Difference[In, Out any] struct {
	// Name is the one in differences.explained, which has the reason.
	Name string
	// As is the input of which the kubelet does what ours does of this one; false if it is this one. All of a pair come
	// first, each after the one before.
	As func(In) (In, bool)
	// Adjust makes of the kubelet's outcome what ours does instead, and reports whether these differ. Its input is the
	// last one of As.
	Adjust func(In, *Out) bool
}

// pairs are all of them, by name. Each file of a pair registers its own.
var pairs = map[string]runner{}

type runner interface {
	run(until time.Time, seed uint64) *result
	branches() []string
	differences() []string
	control(t *testing.T)
	again(t *testing.T, seed, input uint64)
}

func register[In, Out any](p Pair[In, Out]) bool {
	if pairs[p.Name] != nil {
		panic("two pairs are named " + p.Name)
	}
	pairs[p.Name] = &p
	return true
}

//go:embed differences.explained
var explainedText string

// explained is the table of differences.explained: the reasons by pair and name.
func explained(t *testing.T) map[string]map[string]string {
	t.Helper()
	reasons := map[string]map[string]string{}
	for line := range strings.Lines(explainedText) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 {
			t.Fatalf("differences.explained: %q has not three cells", line)
		}
		if reasons[fields[0]] == nil {
			reasons[fields[0]] = map[string]string{}
		}
		reasons[fields[0]][fields[1]] = fields[2]
	}
	return reasons
}

// result is what a run of a pair has seen.
type result struct {
	inputs            uint64
	seen, differences map[string]int
	failed            *uint64 // the number of the first input with a difference that is not explained
}

func (r *result) add(other *result) {
	r.inputs += other.inputs
	for _, m := range []struct{ to, from map[string]int }{{r.seen, other.seen}, {r.differences, other.differences}} {
		for name, n := range m.from {
			m.to[name] += n
		}
	}
	if other.failed != nil && (r.failed == nil || *other.failed < *r.failed) {
		r.failed = other.failed
	}
}

func newResult() *result { return &result{seen: map[string]int{}, differences: map[string]int{}} }

// run compares inputs on all processors until that moment, but at least enough of them, or until one fails. Which these
// are depends on the seed alone. The clock is read once per batch.
func (p *Pair[In, Out]) run(until time.Time, seed uint64) *result {
	const batch = 64
	var next atomic.Uint64
	var failed atomic.Bool
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := newResult()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			r := newResult()
			for !failed.Load() && (next.Load() < enough || time.Now().Before(until)) {
				first := next.Add(batch) - batch
				for input := first; input < first+batch; input++ {
					if !p.judge(p.Generate(newSource(seed, input)), r) {
						r.failed = &input
						failed.Store(true)
						break
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(r)
		})
	}
	wg.Wait()
	return total
}

// judge compares one input and counts what was seen. It reports whether the outcome is ours.
func (p *Pair[In, Out]) judge(in In, r *result) bool {
	want, branches, differences := p.expect(in)
	r.inputs++
	for _, b := range branches {
		r.seen[b]++
	}
	for _, d := range differences {
		r.differences[d]++
	}
	return reflect.DeepEqual(want, p.Ours(in))
}

// expect is the kubelet's outcome with the known differences, what the kubelet did, and which differences matter.
func (p *Pair[In, Out]) expect(in In) (want Out, branches, differences []string) {
	want = p.Upstream(in)
	branches = p.Branches(in, want)
	as := in
	for _, d := range p.Differences {
		if d.As == nil {
			continue
		}
		changed, differs := d.As(as)
		if !differs {
			continue
		}
		as = changed
		other := p.Upstream(changed)
		if !reflect.DeepEqual(want, other) {
			differences = append(differences, d.Name)
		}
		want = other
	}
	for _, d := range p.Differences {
		if d.Adjust != nil && d.Adjust(as, &want) {
			differences = append(differences, d.Name)
		}
	}
	return want, branches, differences
}

func (p *Pair[In, Out]) branches() []string { return p.Wanted }

func (p *Pair[In, Out]) differences() []string {
	var names []string
	for _, d := range p.Differences {
		names = append(names, d.Name)
	}
	return names
}

// again fails the test with the simplest input that is like the one of the run.
func (p *Pair[In, Out]) again(t *testing.T, seed, input uint64) {
	t.Helper()
	source := newSource(seed, input)
	if p.judge(p.Generate(source), newResult()) {
		t.Logf("%s: seed %d, input %d: no difference", p.Name, seed, input)
		return
	}
	in := p.Generate(replayed(p.shrink(source.drawn)))
	want, _, differences := p.expect(in)
	t.Errorf("%s: seed %d, input %d differs. Again: make twins TWINS_SEED=%d TWINS_FLAGS='-only %s -input %d'.\n"+
		"The simplest input like it:\n"+
		"%s\nexplained: %q\nthe kubelet (-), ours (+):\n%s",
		p.Name, seed, input, seed, p.Name, input, p.show(in), differences, cmp.Diff(want, p.Ours(in)))
}

func (p *Pair[In, Out]) shrink(choices []int) []int {
	return shrink(choices, func(c []int) bool { return !p.judge(p.Generate(replayed(c)), newResult()) })
}

func (p *Pair[In, Out]) show(in In) string {
	if p.Show != nil {
		return p.Show(in)
	}
	text, err := yaml.Marshal(in)
	if err != nil {
		return fmt.Sprintf("%+v", in)
	}
	return string(text)
}

// control shows that a fault is noticed, and that its simplest input is found.
func (p *Pair[In, Out]) control(t *testing.T) {
	broken := *p
	broken.Ours = func(in In) Out {
		out := p.Ours(in)
		p.Break(in, &out)
		return out
	}
	for input := range uint64(200_000) {
		source := newSource(1, input)
		if broken.judge(broken.Generate(source), newResult()) {
			continue
		}
		least := broken.shrink(source.drawn)
		if broken.judge(broken.Generate(replayed(least)), newResult()) {
			t.Error("the simplest input shows no difference")
		}
		return
	}
	t.Error("a fault is not noticed")
}

// report is the table of what a run has seen.
func report(name string, r *result, reasons map[string]string, took time.Duration) string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s: %d inputs in %s\n", name, r.inputs, took.Round(100*time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(r.seen)) {
		_, _ = fmt.Fprintf(&b, "  %9d  %s\n", r.seen[what], what)
	}
	for _, what := range slices.Sorted(maps.Keys(r.differences)) {
		_, _ = fmt.Fprintf(&b, "  %9d  difference: %s: %s\n", r.differences[what], what, reasons[what])
	}
	return b.String()
}
