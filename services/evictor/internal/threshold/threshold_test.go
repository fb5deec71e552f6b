package threshold

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/services/evictor/internal/signal"
)

// describe writes thresholds as "signal value grace reclaim", for comparison.
func describe(all []Threshold) []string {
	var out []string
	for _, t := range all {
		value, reclaim := t.Value.Of(1000), t.MinReclaim.Of(1000)
		out = append(out, strings.Join([]string{string(t.Signal), value.String(), t.Grace.String(), reclaim.String()}, " "))
	}
	return out
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		want   []string
		err    string
	}{
		{"nothing", Config{EnforcePods: true}, nil, ""},
		{"off", Config{Hard: map[string]string{"memory.available": "0%", "nodefs.available": "100%"}}, nil, ""},
		{"hard", Config{Hard: map[string]string{"nodefs.available": "10%", "memory.available": "100"}},
			[]string{"memory.available 100 0s 0", "nodefs.available 100 0s 0"}, ""},
		{"the cgroup of all pods", Config{
			Hard: map[string]string{"memory.available": "100"}, EnforcePods: true,
			Soft: map[string]string{"memory.available": "300"}, SoftGracePeriod: map[string]string{"memory.available": "1m"},
			MinimumReclaim: map[string]string{"memory.available": "5%"},
		}, []string{"memory.available 100 0s 50", "memory.available 300 1m0s 50",
			"allocatableMemory.available 100 0s 50"}, ""},
		{"a reclaim of nothing", Config{Hard: map[string]string{"pid.available": "7"},
			MinimumReclaim: map[string]string{"pid.available": "0"}}, []string{"pid.available 7 0s 0"}, ""},
		{"no signal", Config{Hard: map[string]string{"memory.avail": "1"}}, nil,
			`evictionHard.memory.avail: "memory.avail" is no eviction signal`},
		{"above all", Config{Hard: map[string]string{"memory.available": "101%"}}, nil,
			`evictionHard.memory.available is "101%"`},
		{"negative", Config{Hard: map[string]string{"memory.available": "-1"}}, nil, `is "-1"`},
		{"not a number", Config{Hard: map[string]string{"memory.available": "NaN%"}}, nil, `is "NaN%"`},
		{"zero", Config{Hard: map[string]string{"memory.available": "0"}}, nil, `is "0"`},
		{"no grace", Config{Soft: map[string]string{"memory.available": "1"}}, nil,
			"evictionSoftGracePeriod.memory.available is missing"},
		{"bad grace", Config{Soft: map[string]string{"memory.available": "1"},
			SoftGracePeriod: map[string]string{"memory.available": "soon"}}, nil, `is "soon"`},
		{"bad reclaim", Config{MinimumReclaim: map[string]string{"memory.available": "0%"}}, nil,
			`evictionMinimumReclaim.memory.available is "0%"`},
	} {
		got, err := Parse(test.config)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %s", test.name, err, test.err)
			}
			continue
		}
		if err != nil || !slices.Equal(describe(got), test.want) {
			t.Errorf("%s: %q, %v; want %q", test.name, describe(got), err, test.want)
		}
	}
}

func TestMet(t *testing.T) {
	all, err := Parse(Config{
		Hard:           map[string]string{"memory.available": "10%", "pid.available": "5"},
		MinimumReclaim: map[string]string{"memory.available": "50"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		available int64
		reclaim   bool
		want      int
	}{{99, false, 1}, {100, false, 0}, {100, true, 1}, {149, true, 1}, {150, true, 0}} {
		seen := Observations{signal.MemoryAvailable: {Available: test.available, Capacity: 1000, Time: time.Now()}}
		if got := len(Met(all, seen, test.reclaim)); got != test.want {
			t.Errorf("%d available, reclaim %t: %d met, want %d", test.available, test.reclaim, got, test.want)
		}
	}
}

func TestContainerFsFollowsTheLayout(t *testing.T) {
	all, err := Parse(Config{Hard: map[string]string{
		"nodefs.available": "100", "imagefs.available": "200", "containerfs.available": "7",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for layout, want := range map[Layout]string{
		{}: "100", {ImageFs: true}: "200", {ImageFs: true, SplitContainerFs: true}: "100",
	} {
		got := describe(ForLayout(all, layout))
		if !slices.Contains(got, "containerfs.available "+want+" 0s 0") || len(got) != 3 {
			t.Errorf("%+v: %q, want containerfs at %s", layout, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"10%", "0%", "NaN%", "1e400%", "500Mi", "-5", "1e100", ""} {
		f.Add("memory.available", text)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		all, err := Parse(Config{Hard: map[string]string{name: text}, EnforcePods: true})
		if err != nil {
			return
		}
		for _, threshold := range all {
			if v := threshold.Value.Of(1 << 40); v.Sign() < 0 || threshold.Value.zero() && text != "0.0%" && v.Sign() != 0 {
				t.Errorf("%q is read as %v", text, v)
			}
		}
	})
}
