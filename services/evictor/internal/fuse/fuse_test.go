package fuse

import (
	"testing"
	"time"
)

func TestAFastSecondEvictionBlowsTheFuse(t *testing.T) {
	var f Fuse
	start := time.Unix(1_700_000_000, 0)
	for _, step := range []struct {
		after  time.Duration
		passes bool
	}{
		{0, true}, {time.Second, true}, {1500 * time.Millisecond, false}, {5 * time.Second, false},
		{31 * time.Second, false}, {31500 * time.Millisecond, true}, {31600 * time.Millisecond, false},
	} {
		err := f.Check(start.Add(step.after))
		if (err == nil) != step.passes {
			t.Errorf("after %v: %v, want it to pass: %t", step.after, err, step.passes)
		}
		if err == nil {
			f.Evicted(start.Add(step.after))
		}
	}
}
