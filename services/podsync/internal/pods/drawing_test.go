package pods

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheDrawingIsTheCode: what docs/pod-lifecycle.md draws is what transitions says.
func TestTheDrawingIsTheCode(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/pod-lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]int{}
	for _, arrow := range regexp.MustCompile(`(?m)^\s*(\w+) --> (\w+): (\w+)$`).FindAllStringSubmatch(string(page),
		-1) {
		drawn[arrow[1]+" "+arrow[3]+" "+arrow[2]]++
	}
	coded := map[string]int{}
	for _, tr := range transitions {
		coded[tr.from.String()+" "+string(tr.on)+" "+tr.to.String()]++
	}
	if diff := cmp.Diff(coded, drawn); diff != "" {
		t.Errorf("code and drawing differ:\n%s", diff)
	}
	reached := map[phase]bool{syncing: true}
	for _, tr := range transitions {
		if tr.to <= tr.from {
			t.Errorf("%s leads back from %s to %s", tr.on, tr.from, tr.to)
		}
		reached[tr.to] = true
	}
	for p := syncing; p <= gone; p++ {
		if !reached[p] {
			t.Errorf("nothing leads to %s", p)
		}
	}
}
