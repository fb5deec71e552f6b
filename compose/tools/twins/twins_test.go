package twins

import (
	"flag"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

var (
	duration = flag.Duration("for", 5*time.Second, "how long all pairs take together, or longer if the machine is slow")
	seed     = flag.Uint64("seed", 1, "what the inputs are made from")
	only     = flag.String("only", "", "the one pair to run")
	number   = flag.Int64("input", -1, "the one input to compare, by its number")
	stale    = flag.Bool("stale", false, "fail when a difference that is explained does not occur")
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // the kubelet's functions log what they decide
	debug.SetGCPercent(800)        // what lives is small
	os.Exit(runTests(m))
}

// enough is how many inputs a pair compares at least. Among them is each branch of the kubelet's function.
const enough = 20_000

// TestPairs gives random inputs to both functions of each pair.
func TestPairs(t *testing.T) {
	reasons := explained(t)
	names := slices.Sorted(maps.Keys(pairs))
	if *only != "" {
		names = []string{*only}
	}
	var inputs uint64
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			p := pairs[name]
			if p == nil {
				t.Fatalf("there is no such pair, but %q", slices.Sorted(maps.Keys(pairs)))
			}
			if *number >= 0 {
				p.again(t, *seed, uint64(*number))
				return
			}
			began := time.Now()
			r := p.run(began.Add(*duration/time.Duration(len(names))), *seed)
			inputs += r.inputs
			t.Logf("seed %d, %s", *seed, report(name, r, reasons[name], time.Since(began)))
			if r.failed != nil {
				p.again(t, *seed, *r.failed)
				if !t.Failed() {
					t.Errorf("input %d differs now and then", *r.failed)
				}
				return
			}
			for _, branch := range p.branches() {
				if r.seen[branch] == 0 {
					t.Errorf("the kubelet never did: %s", branch)
				}
			}
			for _, d := range p.differences() {
				if *stale && r.differences[d] == 0 {
					t.Errorf("differences.explained: this does not occur any more: %s", d)
				}
			}
		})
	}
	t.Logf("%d inputs of %d pairs", inputs, len(names))
}

// TestFaultsAreNoticed is the positive control of each pair.
func TestFaultsAreNoticed(t *testing.T) {
	for name, p := range pairs {
		t.Run(name, p.control)
	}
}

// TestEachDifferenceHasItsReason compares the code with differences.explained.
func TestEachDifferenceHasItsReason(t *testing.T) {
	reasons := explained(t)
	for name, p := range pairs {
		if got, want := p.differences(), slices.Collect(maps.Keys(reasons[name])); !sameSet(got, want) {
			t.Errorf("%s: the code knows the differences %q, differences.explained has %q", name, got, want)
		}
		delete(reasons, name)
	}
	for name := range reasons {
		t.Errorf("differences.explained: there is no pair %s", name)
	}
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
