package walls

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestStructure(t *testing.T) {
	packages, err := List(t.Context(), top(t), allPackages...)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range slices.Concat(TwoJobs(packages), Crowded(packages)) {
		t.Error(problem)
	}
	for path := range twoVerbs {
		if !slices.ContainsFunc(packages, func(p Package) bool { return p.ImportPath == module+path }) {
			t.Errorf("%s may join two verbs and does not exist", path)
		}
	}
}

func TestTwoJobs(t *testing.T) {
	for doc, joins := range map[string]bool{
		"Package a reads lists and events.":                        false,
		"Package a reads lists and writes events.":                 true,
		"Package a reads lists, and then writes events.":           true,
		"Package a serves reads and writes.":                       true,
		"Package a measures the node, its pods and their volumes.": false,
	} {
		found := TwoJobs([]Package{
			{ImportPath: module + "a", Doc: doc},
			{ImportPath: module + "b", Doc: "Package b writes files."},
		})
		if (len(found) > 0) != joins {
			t.Errorf("%q: %q", doc, found)
		}
	}
}

func TestCrowded(t *testing.T) {
	imports := func(n int) []string {
		out := []string{"context", "k8s.io/api/core/v1"}
		for i := range n {
			out = append(out, fmt.Sprintf("%sservices/pleg/internal/p%d", module, i))
		}
		return out
	}
	for _, c := range []struct {
		path    string
		imports int
		crowded bool
	}{
		{"services/pleg", 20, false},
		{"services/pleg", 21, true},
		{"services/pleg/internal/relist", 21, false},
		{"compose/rig", 21, false},
	} {
		found := Crowded([]Package{{ImportPath: module + c.path, Imports: imports(c.imports)}})
		if (len(found) > 0) != c.crowded {
			t.Errorf("%s with %d: %s", c.path, c.imports, strings.Join(found, "; "))
		}
	}
}
