package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFamiliesOfTheRepository(t *testing.T) {
	all, err := readFamilies("../../../conformance/families")
	if err != nil {
		t.Fatal(err)
	}
	for _, suite := range []Suite{E2E, Node} {
		// The lists are of these selections.
		if f := all[suite.Name]; f.Suite != suite.Name || f.Focus != "" || f.Labels != DefaultLabels || f.Machine {
			t.Errorf("the family %s is not the suite's default selection: %+v", suite.Name, f)
		}
	}
	for name, f := range all {
		if _, err := regexp.Compile(f.Focus); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	families, err := FindFamilies("node-life")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.Name)
	}
	if diff := cmp.Diff([]string{"node-life", "node-lock", "node-open", "node-standalone"}, names); diff != "" {
		t.Errorf("the families of a node's life (-want +got):\n%s", diff)
	}
}

func TestAnUnknownFamilyListsTheKnownOnes(t *testing.T) {
	_, err := FindFamilies("life")
	if err == nil {
		t.Fatal("an unknown family was found")
	}
	for _, want := range []string{`no family "life"`, "\n  e2e ", "\n  node-life ", "\n  storage "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: it lacks %q", err, want)
		}
	}
}

func TestFamilyFiles(t *testing.T) {
	for text, want := range map[string]string{
		"description: d\nsuite: node":                                  "",
		"description: d\nsuite: node\nmachine: true\nstandalone: true": "",
		"description: d\nsuite: node\nfocos: x":                        `unknown field "focos"`,
		"description: d\nsuite: storage":                               "use e2e or node",
		"description: d":                                               "use e2e or node",
		"suite: node":                                                  "no description",
		"description: d\nsuite: node\nopen: true":                      "on a machine",
		"description: d\nsuite: e2e\nmachine: true\nstorage: true":     "on this machine",
		"description: d\nsuite: e2e\nthen: [other]":                    `no family "other"`,
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "one.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := readFamilies(folder)
		switch {
		case want == "" && (err != nil || all["one"].Name != "one" || all["one"].Labels != DefaultLabels):
			t.Errorf("%q is %+v, %v", text, all, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
