package cli

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/conformance"
)

// The command line stands above the family.
func TestFamilyAndFlags(t *testing.T) {
	for _, tc := range []struct {
		name, family string
		flags        []string
		o            conformanceOptions

		focus, labels, folder string
		procs                 int
		timeout               time.Duration
		again                 bool
	}{
		{
			"the default", "e2e", nil, conformanceOptions{},
			"", conformance.DefaultLabels, "e2e", 16, 90 * time.Minute, true,
		},
		{
			"one by one", "node-lock", nil, conformanceOptions{},
			"sig-node. Lock contention", "", "node-lock", 1, 3 * time.Hour, false,
		},
		{
			"on a machine", "node", []string{"machine"}, conformanceOptions{machine: true},
			"", conformance.DefaultLabels, "node-machine", 6, 90 * time.Minute, true,
		},
		{
			"a family on a machine, on a machine", "node-lock", []string{"machine"}, conformanceOptions{machine: true},
			"sig-node. Lock contention", "", "node-lock", 1, 3 * time.Hour, false,
		},
		{
			"everything else", "node-pressure", []string{"focus", "labels", "procs", "timeout", "again"},
			conformanceOptions{focus: "x", labels: "y", procs: 2, timeout: time.Hour, again: true},
			"x", "y", "node-pressure", 2, time.Hour, true,
		},
		{
			"no labels", "e2e", []string{"labels"}, conformanceOptions{},
			"", "", "e2e", 16, 90 * time.Minute, true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			families, err := conformance.FindFamilies(tc.family)
			if err != nil {
				t.Fatal(err)
			}
			tc.o.given = func(flag string) bool { return slices.Contains(tc.flags, flag) }
			c, err := tc.o.compare(families[0])
			if err != nil {
				t.Fatal(err)
			}
			if f := c.family; f.Focus != tc.focus || f.Labels != tc.labels {
				t.Errorf("focus %q, labels %q, want %q and %q", f.Focus, f.Labels, tc.focus, tc.labels)
			}
			if (c.focus == nil) != (tc.focus == "") || c.focus != nil && c.focus.String() != tc.focus {
				t.Errorf("the focus is %v", c.focus)
			}
			if c.procs != tc.procs || c.timeout != tc.timeout || c.again != tc.again {
				t.Errorf("procs %d, timeout %v, again %t", c.procs, c.timeout, c.again)
			}
			if folder := filepath.Base(c.output); folder != tc.folder {
				t.Errorf("the results go to %s, want %s", folder, tc.folder)
			}
		})
	}
}
