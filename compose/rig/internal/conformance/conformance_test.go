package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const report = `[{
 "SuiteSucceeded": false,
 "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"],
 "SpecReports": [
  {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
  {"LeafNodeType": "ReportAfterSuite", "State": "panicked", "Failure": {"Message": "no disk"}},
  {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "runs [NodeConformance]", "State": "passed", "RunTime": 1500000000},
  {"ContainerHierarchyTexts": ["[sig-node] Pods", "when deleted"], "LeafNodeType": "It", "LeafNodeText": "ends", "State": "timedout", "RunTime": 2, "Failure": {"Message": "too\n  late"}},
  {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "needs SSH", "State": "skipped", "Failure": {"Message": "no SSH"}},
  {"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "elsewhere", "State": "skipped", "Failure": {}}
 ]}]`

func TestParseReport(t *testing.T) {
	got, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	want := Results{
		Specs: map[string]Result{
			"[sig-node] Pods runs [NodeConformance]": {State: Passed, Took: 1500 * time.Millisecond, Tries: 1},
			"[sig-node] Pods when deleted ends":      {State: Failed, Took: 2, Tries: 1, Reason: "too\n  late"},
			"[sig-node] Pods needs SSH":              {State: Skipped, Tries: 1, Reason: "no SSH"},
		},
		All: map[string]bool{
			"[sig-node] Pods runs [NodeConformance]": true,
			"[sig-node] Pods when deleted ends":      true,
			"[sig-node] Pods needs SSH":              true,
			"elsewhere":                              true,
		},
		Broken: []string{"Suite Timeout Elapsed", "ReportAfterSuite: no disk"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "[]", "{}", `[{"SpecReports": []}]`} {
		if _, err := parseReport([]byte(bad)); err == nil {
			t.Errorf("report %q was accepted", bad)
		}
	}
}

func TestReference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.txt")
	if err := WriteReference(path, E2E, "v1.37.1", []string{"b | c", "a"}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReference(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Reference{Version: "v1.37.1", Specs: []string{"a", "b | c"}}, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string]string{
		"a line is lost":  strings.Replace(string(text), "\na\n", "\n", 1),
		"a line is twice": strings.Replace(string(text), "\na\n", "\na\na\n", 1),
		"no head":         "a\nb\n",
		"empty":           "# Kubernetes v1.37.1, 0 specs\n",
	} {
		if _, err := parseReference([]byte(broken)); err == nil {
			t.Errorf("%s: the list was accepted:\n%s", name, broken)
		}
	}
}

func TestReasons(t *testing.T) {
	got, err := parseReasons([]byte("# head\n\n[sig-node] a b\tnot built yet: probes\n"))
	if diff := cmp.Diff(Reasons{"[sig-node] a b": "not built yet: probes"}, got); diff != "" || err != nil {
		t.Errorf("%v, reasons (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"a b", "a\t", "a\tx\na\ty"} {
		if _, err := parseReasons([]byte(bad)); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("%q: error %v, want one with the line", bad, err)
		}
	}
}

// results are those of specs by name; what has no state was not selected.
func results(states map[string]State) Results {
	r := Results{Specs: map[string]Result{}, All: map[string]bool{}}
	for name, state := range states {
		if state == Absent {
			continue
		}
		r.All[name] = true
		if state != "" {
			r.Specs[name] = Result{State: state, Tries: 1, Reason: "because"}
		}
	}
	return r
}

func TestJudge(t *testing.T) {
	ref := Reference{Version: "v1", Specs: []string{"pods a", "pods b"}}
	good := map[string]State{"pods a": Passed, "pods b": Passed, "pods new": Failed}
	for _, tc := range []struct {
		name    string
		agent   string
		results Results
		focus   string
		labels  string
		reasons Reasons
		skips   Reasons
		compare map[string]State
		met     int
		want    []string
	}{
		{name: "all of the list passed", agent: Kubelet, results: results(good), met: 2},
		{name: "a spec of the list is gone", agent: Kubelet,
			results: results(map[string]State{"pods a": Passed, "pods b": Absent}), met: 1,
			want: []string{"not in the suite any more: pods b"}},
		{name: "the selection lost one", agent: Kubelet, results: results(map[string]State{"pods a": Passed, "pods b": ""}),
			met: 1, want: []string{"not run: pods b"}},
		{name: "one skips itself", agent: Microlet, results: results(map[string]State{"pods a": Passed, "pods b": Skipped}),
			met: 1, want: []string{"skipped, and the kubelet's list has it: pods b: because"}},
		{name: "one fails", agent: Microlet, results: results(map[string]State{"pods a": Passed, "pods b": Failed}), met: 1,
			want: []string{"failed, and the kubelet's list has it: pods b: because"}},
		{
			name:    "a known failure is one",
			agent:   Microlet,
			results: results(map[string]State{"pods a": Passed, "pods b": Failed}),
			met:     1,
			reasons: Reasons{"pods b": "not built yet: b"},
			want:    []string{"failed (known: not built yet: b): pods b"},
		},
		{name: "a reason is out of date", agent: Microlet, results: results(good), met: 2, reasons: Reasons{"pods b": "x"},
			want: []string{"passed, remove its line from the reasons: pods b"}},
		{name: "reasons are microlet's", agent: Kubelet, results: results(good), met: 2, reasons: Reasons{"pods b": "x"}},
		{name: "the focus leaves one out", agent: Microlet,
			results: results(map[string]State{"pods a": Passed, "pods b": ""}), focus: "a$", met: 1},
		{name: "nothing ran", agent: Microlet, results: results(map[string]State{"pods a": "", "pods b": ""}),
			focus: "volumes", want: []string{"no spec ran: look at the focus and the labels"}},
		{name: "other labels", agent: Microlet, labels: "Conformance",
			results: results(map[string]State{"pods a": Passed, "pods b": ""}), met: 1},
		{
			name:  "the kubelet passes one that the list lacks",
			agent: Microlet,
			results: results(map[string]State{
				"pods a":   Passed,
				"pods b":   Passed,
				"pods new": Failed,
				"pods odd": Failed,
			}),
			met:     2,
			compare: map[string]State{"pods new": Passed, "pods odd": Failed},
			want:    []string{"not passed, and the kubelet passed it: pods new: because"},
		},
		{
			name: "each skip has its reason", agent: Kubelet, met: 2, skips: Reasons{"pods new": "no disk here"},
			results: results(map[string]State{
				"pods a":   Passed,
				"pods b":   Passed,
				"pods new": Failed,
				"pods odd": Skipped,
			}),
			want: []string{"skipped, and nothing says why: pods odd: because"},
		},
		{name: "a skip may pass elsewhere", agent: Kubelet, met: 2, skips: Reasons{"pods new": "no disk here"},
			results: results(map[string]State{"pods a": Passed, "pods b": Passed, "pods new": Passed})},
		{name: "skips are the kubelet's", agent: Microlet, met: 2, skips: Reasons{"pods b": "x"}, results: results(good)},
		{name: "skips are of the default selection", agent: Kubelet, met: 2, skips: Reasons{}, labels: "Slow",
			results: results(good)},
		{
			name: "the suite broke", agent: Kubelet, met: 2, want: []string{"outside of specs: no disk"},
			results: func() Results { r := results(good); r.Broken = []string{"no\n  disk"}; return r }(),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var focus *regexp.Regexp
			if tc.focus != "" {
				focus = regexp.MustCompile(tc.focus)
			}
			labels := tc.labels
			if labels == "" {
				labels = DefaultLabels
			}
			var compare *Results
			if tc.compare != nil {
				r := results(tc.compare)
				compare = &r
			}
			j := Judge(tc.agent, tc.results, Known{Suite: E2E, Reference: ref, Reasons: tc.reasons, Skips: tc.skips},
				focus, labels, compare)
			if diff := cmp.Diff(tc.want, j.Complaints); diff != "" {
				t.Errorf("complaints (-want +got):\n%s", diff)
			}
			if j.Met != tc.met {
				t.Errorf("%d specs of the list met, want %d", j.Met, tc.met)
			}
		})
	}
}

func TestSecondTryIsCountedAndShown(t *testing.T) {
	first := results(map[string]State{"a": Failed, "b": Failed, "c": Passed})
	second := results(map[string]State{"a": Passed, "b": Failed, "c": ""})
	first.Merge(second)
	ref := Reference{Version: "v1.37.1", Specs: []string{"a", "b", "c"}}
	if j := Judge(Microlet, first, Known{Suite: E2E, Reference: ref}, nil, DefaultLabels, nil); j.Passed != 2 ||
		j.Second != 1 || j.Failed != 1 {
		t.Errorf("judgement %+v, want 2 passed, one of them at the second try, and 1 failed", j)
	}
	want := "| spec | kubelet | microlet |\n|---|---|---|\n| a | not run | pass at try 2 0.0 s |\n| b | not run | " +
		"**fail** 0.0 s |\n| c | not run | pass 0.0 s |\n| **all** | not run | 2 pass, 1 fail, 0 skip |\n"
	if diff := cmp.Diff(want, Table(nil, &first)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	wantSection := "| suite | kubelet passes | microlet passes of these | of them at the second try " +
		"|\n|---|---|---|---|\n| Kubernetes v1.37.1 | 3 | 2 | 1 |\n" +
		"\nNot passed by microlet:\n\n| spec | why |\n|---|---|\n| b | not built yet: b |\n"
	if diff := cmp.Diff(wantSection,
		Section(Known{Reference: ref, Reasons: Reasons{"b": "not built yet: b"}}, first)); diff != "" {
		t.Errorf("section (-want +got):\n%s", diff)
	}
}

func TestPageKeepsWhatIsWrittenByHand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := WritePage(path, E2E, "x"); err == nil {
		t.Error("a page that is not there was written")
	}
	page := func(e2e, node string) string {
		return "# Head\n" + pageBegin(E2E) + "\n" + e2e + "\n" + pageEnd + "\nbetween\n" + pageBegin(Node) + "\n" +
			node + "\n" + pageEnd + "\ntail\n"
	}
	if err := os.WriteFile(path, []byte(page("old", "older")), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, w := range []struct {
			suite   Suite
			section string
		}{{E2E, "new"}, {Node, "newer"}} {
			if err := WritePage(path, w.suite, w.section); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := page("\nnew", "\nnewer"); string(got) != want {
		t.Errorf("page is\n%s\nwant\n%s", got, want)
	}
}

func TestExactlyMatchesNothingElse(t *testing.T) {
	for _, suite := range []Suite{E2E, Node} {
		focus := suite.Exactly([]string{"a (b) [c]", "d"})
		for name, want := range map[string]bool{
			"a (b) [c]": true,
			"d":         true,
			"d e":       false,
			"ad":        false,
			"a b c":     false,
		} {
			if focus.MatchString(suite.described(name)) != want {
				t.Errorf("%s: %q matches: %v, want %v", suite.Name, name, !want, want)
			}
		}
	}
}

func TestProgress(t *testing.T) {
	log := "Will run 12 of 3206 specs\n••\n------\n• [FAILED] [2.259 seconds]\n------\n•\n• [TIMEDOUT] [1 seconds]\n"
	if got, want := progress([]byte(log)), "5 of 12 specs ended, 2 failed"; got != want {
		t.Errorf("progress %q, want %q", got, want)
	}
}

func TestSavedResultsAreLoaded(t *testing.T) {
	dir := t.TempDir()
	if r, err := Load(dir); r != nil || err != nil {
		t.Errorf("an agent that never ran has %v, %v", r, err)
	}
	want, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

// The committed files belong together, and to the pinned suites.
func TestCommittedFiles(t *testing.T) {
	for _, tc := range []struct {
		suite  Suite
		passes int // what the kubelet passes at least, on any machine it was tried on
	}{{E2E, 239}, {Node, 180}} {
		t.Run(tc.suite.Name, func(t *testing.T) {
			files, err := Locate(tc.suite)
			if err != nil {
				t.Fatal(err)
			}
			known, err := files.Read()
			if err != nil {
				t.Fatal(err)
			}
			if len(known.Reference.Specs) < tc.passes {
				t.Errorf("the kubelet's list has %d specs, want at least %d", len(known.Reference.Specs), tc.passes)
			}
			listed := map[string]bool{}
			for _, name := range known.Reference.Specs {
				listed[name] = true
			}
			for name := range known.Reasons {
				if !listed[name] {
					t.Errorf("reason for %q, which the kubelet's list does not have", name)
				}
			}
			for name := range known.Skips {
				if listed[name] {
					t.Errorf("%q is skipped, and the kubelet's list has it", name)
				}
			}
			page, err := os.ReadFile(files.Page)
			if err != nil {
				t.Fatal(err)
			}
			if _, rest, ok := strings.Cut(string(page), pageBegin(tc.suite)); !ok || !strings.Contains(rest, pageEnd) {
				t.Errorf("%s has no place for results", files.Page)
			}
		})
	}
}
